"""A vendor of models that misbehaves on demand, in OpenAI's and in Anthropic's words.

The prompt says how a call goes, so that many may run at once: `ok`, `status 529`, `hang up`
(no answer), `break` (a stream that ends in the middle), `stall` (nothing more comes). What
stands behind a `|` is the call's own id: `ids` has those on which the vendor worked.
"""

import http.server
import json
import threading

# What every good call used.
INPUT, OUTPUT = 1000, 40
OPENAI_USAGE = {"prompt_tokens": INPUT, "completion_tokens": OUTPUT, "total_tokens": INPUT + OUTPUT,
                "prompt_tokens_details": {"cached_tokens": 100}}
# The same, as the other counts it.
ANTHROPIC_USAGE = {"input_tokens": INPUT - 100, "cache_read_input_tokens": 100,
                   "cache_creation_input_tokens": 0, "output_tokens": OUTPUT}
WORDS = [f"word{n} " for n in range(8)]


class Vendor:
    def __init__(self):
        vendor = self

        class Handler(_Handler):
            def do_POST(self):
                vendor.answer(self)

        self.ids, self.bodies = [], []
        self.lock = threading.Lock()
        # Set whenever it begins to work on a call.
        self.begun = threading.Event()
        # Set when the test is over: whoever stalls goes on.
        self.over = threading.Event()
        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, call):
        body = json.loads(call.rfile.read(int(call.headers["Content-Length"])))
        words = body["messages"][-1]["content"] if "messages" in body else body["input"]
        if isinstance(words, list):  # of parts
            words = words[-1]["text"]
        prompt, _, id = words.partition("|")
        if prompt.startswith("status "):
            error = {"type": "error", "error": {"type": "api_error", "message": "no", "code": None}}
            return call.reply(int(prompt.split()[1]), error)
        with self.lock:
            self.ids.append(id)
            self.bodies.append(body)
        self.begun.set()
        if prompt == "hang up":
            return call.hang_up()
        shape = {"messages": Anthropic, "responses": Responses}.get(call.path.rpartition("/")[2], OpenAi)
        if not body.get("stream"):
            if prompt == "stall":
                self.over.wait()
                return call.hang_up()
            return call.reply(200, shape.whole())
        call.begin_events()
        for number, event in enumerate(shape.events(body)):
            if number == 4 and prompt == "break":
                return call.hang_up()
            if number == 4 and prompt == "stall":
                self.over.wait()
                return call.hang_up()
            if not call.event(event):
                return None
        return call.end_events()


class OpenAi:
    @staticmethod
    def whole():
        choice = {"index": 0, "message": {"role": "assistant", "content": "".join(WORDS)}, "finish_reason": "stop"}
        return {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
                "usage": OPENAI_USAGE}

    @staticmethod
    def events(body):
        chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        for number, word in enumerate(WORDS, 1):
            ended = "stop" if number == len(WORDS) else None
            yield None, chunk | {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": ended}]}
        if (body.get("stream_options") or {}).get("include_usage"):
            yield None, chunk | {"choices": [], "usage": OPENAI_USAGE}
        yield None, "[DONE]"


class Responses:
    @staticmethod
    def whole():
        text = {"type": "output_text", "text": "".join(WORDS), "annotations": []}
        usage = {"input_tokens": INPUT, "input_tokens_details": {"cached_tokens": 100, "cache_write_tokens": 0},
                 "output_tokens": OUTPUT, "output_tokens_details": {"reasoning_tokens": 8},
                 "total_tokens": INPUT + OUTPUT}
        message = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [text]}
        return {"id": "r1", "object": "response", "created_at": 1, "model": "m", "status": "completed",
                "output": [message], "usage": usage}

    @staticmethod
    def events(_):
        begun = Responses.whole() | {"status": "in_progress", "output": [], "usage": None}
        yield "response.created", {"type": "response.created", "response": begun}
        for word in WORDS:
            delta = {"type": "response.output_text.delta", "item_id": "m1", "output_index": 0, "content_index": 0}
            yield delta["type"], delta | {"delta": word}
        yield "response.completed", {"type": "response.completed", "response": Responses.whole()}


class Anthropic:
    @staticmethod
    def whole():
        return {"id": "m1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
                "stop_sequence": None, "content": [{"type": "text", "text": "".join(WORDS)}],
                "usage": ANTHROPIC_USAGE}

    @staticmethod
    def events(_):
        start = Anthropic.whole() | {"content": [], "stop_reason": None, "usage": ANTHROPIC_USAGE | {"output_tokens": 1}}
        yield "message_start", {"type": "message_start", "message": start}
        block = {"type": "text", "text": ""}
        yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}
        for word in WORDS:
            delta = {"type": "text_delta", "text": word}
            yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": 0}
        yield "message_delta", {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                                "usage": {"output_tokens": OUTPUT}}
        yield "message_stop", {"type": "message_stop"}


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass  # who hung up is not missed


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, headers=()):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def hang_up(self):
        self.close_connection = True
        self.wfile.flush()

    def begin_events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, event):
        name, data = event
        text = (f"event: {name}\n" if name else "") + f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
        try:
            self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())
            self.wfile.flush()
        except OSError:
            return False
        return True

    def end_events(self):
        self.wfile.write(b"0\r\n\r\n")
