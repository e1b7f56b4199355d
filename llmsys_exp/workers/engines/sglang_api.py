"""What is sent to a server and read from it: SGLang's own API, and the OpenAI one of many servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from llmsys_exp.errors import UserError, unknown_name
from llmsys_exp.workers.engines.base import ABORT, LENGTH, STOP, Generation, Request, Started
from llmsys_exp.workers.engines.http_client import Client, Reply, malformed
from llmsys_exp.workers.engines.model_names import same_model
from llmsys_exp.workers.engines.sglang_engine import generation, sampling_arguments
from llmsys_exp.workers.engines.sglang_host import answer, described
from llmsys_exp.workers.generation import Sampling


class Api(Protocol):
    """One way of speaking with a server."""

    path: str

    def check(self, names: Sequence[str]) -> Started:
        """Return what the server says of itself; refuse one that serves another model than these names."""
        ...

    def body(self, request: Request, sampling: Sampling) -> dict[str, Any]:
        """Return what is sent for one prompt."""
        ...

    def generation(self, request: Request, reply: Reply) -> Generation:
        """Return the answer in a reply."""
        ...


class NativeApi:
    """SGLang's `/generate`: token ids there and back."""

    path = "/generate"

    def __init__(self, client: Client, tokenizer: Any, *, adapter: str | None, seeded: bool) -> None:
        self._client, self._tokenizer = client, tokenizer
        self._adapter, self._seeded = adapter, seeded

    def check(self, names: Sequence[str]) -> Started:
        """Ask for the model's path and the settings."""
        told = self._client.get("/model_info") or self._client.get("/get_model_info")
        if not isinstance(told, dict) or "model_path" not in told:
            raise malformed(self._client.url, "/model_info", str(told))
        check_model(self._client.url, str(told["model_path"]), names)
        info = self._client.get("/server_info") or self._client.get("/get_server_info") or {}
        known = described(info, str(info.get("version", "unknown")))
        return Started(name="sglang_server", **known)

    def body(self, request: Request, sampling: Sampling) -> dict[str, Any]:
        """Return token ids and sampling."""
        asked = sampling_arguments(sampling, self._tokenizer)
        asked["max_new_tokens"] = request.limit(sampling)
        if self._seeded:
            asked["sampling_seed"] = request.seed
        body = {"input_ids": list(request.ids), "sampling_params": asked}
        return body if self._adapter is None else body | {"lora_path": self._adapter}

    def generation(self, request: Request, reply: Reply) -> Generation:
        """Return new tokens, or the text of a server that tells text alone."""
        if reply.error is not None:
            return aborted(request, reply)
        data = reply.data
        if not isinstance(data, dict) or not isinstance(data.get("meta_info"), dict):
            raise malformed(self._client.url, self.path, str(data))
        told = answer(data) | {"index": request.index, "latency_s": reply.seconds}
        if told["ids"] or not data.get("text"):
            return generation(told)
        finish = told["finish"] if told["finish"] in (STOP, LENGTH) else ABORT
        return Generation(
            index=request.index,
            ids=None,
            text=data["text"],
            finish=finish,
            prompt_tokens=told["prompt_tokens"],
            new_tokens=told["new_tokens"],
            cached_tokens=told["cached_tokens"],
            first_token_s=told["first_token_s"],
            latency_s=reply.seconds,
            retractions=told["retractions"],
            error=told["error"] if finish == ABORT else None,
        )


class OpenAiApi:
    """`/v1/completions`: token ids where the server takes them, else the text; text comes back."""

    path = "/v1/completions"

    def __init__(self, client: Client, tokenizer: Any, *, model: str | None) -> None:
        self._client, self._tokenizer, self._model = client, tokenizer, model
        self._takes_ids = self._takes_more = True

    def check(self, names: Sequence[str]) -> Started:
        """Find the model among those served, and out how prompts may be given."""
        told = self._client.get("/v1/models")
        if not isinstance(told, dict) or not isinstance(told.get("data"), list):
            raise malformed(self._client.url, "/v1/models", str(told))
        served = {str(one.get("id")): one for one in told["data"] if isinstance(one, dict)}
        row = served[self._pick(served, names)]
        self._probe()
        return Started(
            name="sglang_server",
            version=str(row.get("owned_by") or "unknown"),
            context_tokens=row.get("max_model_len"),
            kv_tokens=None,
            weights_gib=None,
            graphs_gib=None,
            settings={"model": self._model, "prompts": "ids" if self._takes_ids else "text"},
        )

    def _pick(self, served: dict[str, Any], names: Sequence[str]) -> str:
        if self._model is None:
            if len(served) != 1:
                raise UserError(
                    f"The server at {self._client.url} serves {len(served)} models",
                    where="inference.server.model",
                    do=f"Name one of them: {', '.join(sorted(served))}",
                )
            self._model = next(iter(served))
            check_model(self._client.url, str(served[self._model].get("root") or self._model), names)
        elif self._model not in served:
            raise unknown_name("served model", self._model, list(served), where="inference.server.model")
        return self._model

    def _probe(self) -> None:
        """Ask for one token in each way, until one is taken."""
        request = Request(index=0, ids=(1, 2), text="Hello", seed=0)
        sampling = Sampling(max_new_tokens=1, top_k=1, ignore_eos=True)
        for ids, more in ((True, True), (False, True), (True, False), (False, False)):
            self._takes_ids, self._takes_more = ids, more
            if self._client.post(self.path, self.body(request, sampling)) is not None:
                return
        raise UserError(
            f"The server at {self._client.url} takes no prompt at {self.path}",
            where="inference.server",
            do="Look into the server's own log for the reason",
        )

    def body(self, request: Request, sampling: Sampling) -> dict[str, Any]:
        """Return the prompt and what of the sampling this server takes."""
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": list(request.ids) if self._takes_ids else request.text,
            "max_tokens": request.limit(sampling),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed,
        }
        if self._takes_more:
            asked = sampling_arguments(sampling, self._tokenizer)
            body |= {name: asked[name] for name in ("ignore_eos", "stop_token_ids") if asked.get(name)}
            body |= {"top_k": sampling.top_k} if sampling.top_k else {}
        elif sampling.top_k or sampling.ignore_eos:
            raise UserError(
                "This server takes neither top_k nor ignore_eos",
                where="inference.sampling",
                why="They are no part of the OpenAI API",
                do="Leave them at their defaults",
            )
        return body

    def generation(self, request: Request, reply: Reply) -> Generation:
        """Return the text of the first choice."""
        if reply.error is not None:
            return aborted(request, reply)
        try:
            choice, usage = reply.data["choices"][0], reply.data.get("usage") or {}
            text, reason = str(choice["text"]), choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, AttributeError):
            raise malformed(self._client.url, self.path, str(reply.data)) from None
        details = usage.get("prompt_tokens_details") or {}
        finish = reason if reason in (STOP, LENGTH) else ABORT
        return Generation(
            index=request.index,
            ids=None,
            text=text,
            finish=finish,
            prompt_tokens=usage.get("prompt_tokens", len(request.ids)),
            new_tokens=usage.get("completion_tokens") or self._count(text),
            cached_tokens=details.get("cached_tokens"),
            first_token_s=None,
            latency_s=reply.seconds,
            error=str(reason) if finish == ABORT else None,
        )

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))


def aborted(request: Request, reply: Reply) -> Generation:
    """Return the answer that a server did not give."""
    return Generation(
        index=request.index,
        ids=(),
        text=None,
        finish=ABORT,
        prompt_tokens=len(request.ids),
        new_tokens=0,
        cached_tokens=None,
        first_token_s=None,
        latency_s=reply.seconds,
        error=reply.error,
    )


def check_model(url: str, served: str, names: Sequence[str]) -> None:
    """Refuse a server of another model than the one with these names (folder, hub id)."""
    if not any(same_model(served, name) for name in names):
        raise UserError(
            f"The server at {url} serves {served}, and this run asks for {names[0]}",
            where="inference.server.url",
            why="Its answers would be recorded under the wrong name",
            do="Give the URL of a server of that model, or set model to the one that is served",
        )
