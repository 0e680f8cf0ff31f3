"""A chat backend whose users have plans. What Apportion adds is marked with `# +`.

APPORTION_URL, APPORTION_TOKEN, OPENAI_API_KEY (and OPENAI_BASE_URL): uvicorn app:app
"""

import os

import openai
from apportion import Apportion, Refused  # +
from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

quota = Apportion(os.environ["APPORTION_URL"], os.environ["APPORTION_TOKEN"])  # +
vendor = openai.AsyncOpenAI()
app = FastAPI()


class Question(BaseModel):
    text: str


@app.exception_handler(Refused)  # +
def refused(_: Request, refusal: Refused):  # +
    """The user is told what Apportion said: which limit, and when it works again."""  # +
    wait = {"Retry-After": str(-(-refusal.retry_after_ms // 1000))} if refusal.retry_after_ms else {}  # +
    return JSONResponse(refusal.problem, refusal.status, wait)  # +


@app.post("/chat")
async def chat(question: Question, user: str = Header(alias="x-user")):
    client = quota.openai(vendor, user, feature="chat")  # +
    chunks = await client.chat.completions.create(
        model="gpt-5", messages=[{"role": "user", "content": question.text}], max_tokens=512, stream=True)

    async def text():
        async with chunks:  # whoever hangs up ends the call
            async for chunk in chunks:
                yield chunk.choices[0].delta.content or ""

    return StreamingResponse(text(), media_type="text/plain")
