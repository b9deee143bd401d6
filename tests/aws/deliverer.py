"""One of several processes that messages are delivered to: hands each to the application, and tells what came of it."""

import json
import sys
from contextlib import closing

from holdfast import Holdfast
from tests.aws.outside import Outside


def main(url: str) -> None:
    """Deliver until the queue is empty; print the id and the outcome of each delivery."""
    with closing(Holdfast(url)) as app:

        @app.job(name="echo")
        def echo(n: int) -> int:
            return n

        outside = Outside(url)
        address = outside.url(outside.queue)
        app.counts()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.readline()
        said: list[str] = []
        while found := outside.sqs.receive_message(QueueUrl=address, MaxNumberOfMessages=10).get("Messages"):
            for message in found:
                said.append(f"{json.loads(message['Body'])['job_id']} {app.process(message['Body'])}\n")
                outside.sqs.delete_message(QueueUrl=address, ReceiptHandle=message["ReceiptHandle"])
        sys.stdout.write("".join(said))


if __name__ == "__main__":
    main(sys.argv[1])
