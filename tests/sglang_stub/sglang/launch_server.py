"""An HTTP server with SGLang's paths, for failure cases. `python -m sglang.launch_server PORT MODEL` starts it alone."""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sglang import __version__
from sglang.failures import BUSY, BUSY_ONCE, DIE, DROP_ONCE, HANG, MALFORMED, NOT_JSON, result

HANG_S = 3.0


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    model, seen = "", set()

    def log_message(self, *args):
        pass

    def say(self, data, status=200):
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        memory = {"weight": 1.5, "token_capacity": 4321, "graph": {"decode": 0.25}}
        info = {"version": __version__, "context_length": 64, "internal_states": [{"memory_usage": memory}]}
        models = {"data": [{"id": name, "max_model_len": 64} for name in self.model.split(",")]}
        known = {"/health": {}, "/flush_cache": {}, "/model_info": {"model_path": self.model}, "/server_info": info,
                 "/v1/models": models}  # fmt: skip
        if os.environ.get("STUB_INFO") == "html":
            known["/model_info"] = b"<html>" + b"x" * 500
        found = known.get(self.path)
        self.say({"error": "no such path"}, 404) if found is None else self.say(found)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        native = self.path == "/generate"
        ids = body["input_ids"] if native else body["prompt"]
        if not native and (os.environ.get("STUB_TEXT_ONLY") or isinstance(ids, str)):
            if not isinstance(ids, str):
                return self.say({"object": "error", "message": "prompt must be a string"}, 400)
            ids = [len(word) for word in ids.split()]
        if self.fail(ids):
            return None
        if native:
            return self.say(result(ids, body["sampling_params"], body.get("lora_path")))
        sampling = {"max_new_tokens": body["max_tokens"], "stop_token_ids": body.get("stop_token_ids", [])}
        told = result(ids, sampling)
        usage = {"prompt_tokens": len(ids), "completion_tokens": told["meta_info"]["completion_tokens"]}
        choice = {"text": told["text"], "finish_reason": told["meta_info"]["finish_reason"]["type"]}
        return self.say({"choices": [choice], "usage": usage})

    def fail(self, ids):
        """Do what the first token asks for; return whether that was an answer."""
        kind, is_new = ids[0], tuple(ids) not in self.seen
        self.seen.add(tuple(ids))
        if kind == DIE:
            os._exit(7)
        if kind == HANG:
            time.sleep(HANG_S)
        if kind == BUSY or (kind == BUSY_ONCE and is_new):
            self.say({"error": {"message": "too many requests"}}, 503)
        elif kind == DROP_ONCE and is_new:
            self.close_connection = True
            self.connection.close()
        elif kind == MALFORMED:
            self.say({"answer": "y" * 500})
        elif kind == NOT_JSON:
            self.say(b"<html>" + b"z" * 500)
        else:
            return False
        return True


class Server(ThreadingHTTPServer):
    """Says nothing of connections that it drops."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


def run_server(server_args):
    """Serve until ended."""
    start = os.environ.get("STUB_START", "")
    if start:
        print(start, file=sys.stderr, flush=True)
        raise RuntimeError("the scheduler died")
    Handler.model = server_args.model_path
    Server((server_args.host, server_args.port), Handler).serve_forever()


if __name__ == "__main__":
    Handler.model = sys.argv[2]
    server = Server(("127.0.0.1", int(sys.argv[1])), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
