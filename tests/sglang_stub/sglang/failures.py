"""What the first token of a prompt asks the stub to do, and the answer it gives otherwise."""

DIE, HANG, FULL, BUSY_ONCE, BUSY, MALFORMED, DROP_ONCE, NOT_JSON, ABORTED = range(900, 909)


def result(ids, sampling, lora_path=None):
    """The prompt's own tokens, ended by the first of the stop tokens where there is room."""
    room = sampling["max_new_tokens"]
    ends = [] if sampling.get("ignore_eos") else sampling.get("stop_token_ids", [])
    new = [*ids, *ends[:1]][:room]
    stopped = bool(ends) and new[-1] == ends[0]
    finish = {"type": "stop", "matched": ends[0]} if stopped else {"type": "length", "length": room}
    if ids[0] == ABORTED:
        finish = {"type": "abort", "message": "Out of room"}
    meta = {
        "finish_reason": finish, "prompt_tokens": len(ids), "completion_tokens": len(new), "cached_tokens": 1,
        "num_retractions": 2, "request_received_ts": 100.0, "prefill_finished_time": 100.5, "first_token_latency": 9.0,
        "adapter": lora_path,
    }  # fmt: skip
    return {"output_ids": new, "text": " ".join(map(str, new)), "meta_info": meta}
