// A worker in another language: plain Node (18 or newer), no packages. It speaks the worker protocol of `holdfast
// server`: claim by long poll, heartbeat while working, then complete, fail or release, each with the lease's token.
//
//   HOLDFAST_SERVER=http://127.0.0.1:8080 QUEUES=photos node worker.mjs
//
// HOLDFAST_TOKEN is a token with the scope `work`, if the server asks for one. SIGTERM or Ctrl-C lets running jobs
// finish; a second one gives them back and leaves.

import { createHash, randomBytes } from "node:crypto";
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const SERVER = (process.env.HOLDFAST_SERVER ?? "http://127.0.0.1:8080").replace(/\/+$/, "");
const TOKEN = process.env.HOLDFAST_TOKEN;
const QUEUES = process.env.QUEUES?.split(",");
const CONCURRENCY = Number(process.env.CONCURRENCY ?? 4);
const LEASE = Number(process.env.LEASE ?? 15); // seconds that a claim holds without a heartbeat
const WAIT = Number(process.env.WAIT ?? 20); // seconds that one request waits for work
const NAME = `${hostname()}:${process.pid}:${randomBytes(3).toString("hex")}`;

/** Thrown by a handler when trying again cannot help. Its message is shown to operators. */
class Permanent extends Error {
  constructor(message, code = "permanent") {
    super(message);
    this.code = code;
  }
}

/** What each kind of job does. `signal` is aborted when the job is cancelled or its lease is lost. */
const handlers = {
  async resize({ payload }) {
    const { width, height, longest } = payload;
    if (!(width > 0 && height > 0 && longest > 0)) throw new Permanent("sizes are above zero", "bad_size");
    const scale = Math.min(1, longest / Math.max(width, height));
    return { width: Math.round(width * scale), height: Math.round(height * scale) };
  },

  async checksum({ payload }) {
    return createHash("sha256").update(payload.text).digest("hex");
  },

  async render({ payload, attempt, signal }) {
    await sleep(payload.seconds * 1000, undefined, { signal }); // stands for work that takes its time
    return `rendered at attempt ${attempt}`;
  },
};

/** An answer that says no. */
class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `status ${status}`);
    this.status = status;
    this.code = problem.code;
  }
}

/** Ask the server; again after a pause if it is out of reach or busy, which is safe for all that a worker says. */
async function ask(path, body, { tries = 6, signal } = {}) {
  const headers = { "Content-Type": "application/json", ...(TOKEN && { Authorization: `Bearer ${TOKEN}` }) };
  for (let tried = 1; ; tried++) {
    try {
      const answer = await fetch(SERVER + path, { method: "POST", headers, body: JSON.stringify(body), signal });
      const said = await answer.json();
      if (answer.ok) return said;
      throw new Refused(answer.status, said);
    } catch (error) {
      const final = error instanceof Refused && ![429, 502, 503, 504].includes(error.status);
      if (final || signal?.aborted || tried >= tries) throw error;
    }
    await sleep(Math.min(100 * 2 ** tried, 5000) * (0.5 + Math.random() / 2), undefined, { signal });
  }
}

const say = (job, verb, more = {}, options) =>
  ask(`/v1/jobs/${job.id}/${verb}`, { token: job.lease.token, ...more }, options);

/** Run one job, keep its lease meanwhile, and say what came of it. */
async function run(job, leaving) {
  const stop = new AbortController(); // tells the handler to stop
  const lost = new AbortController(); // the lease is over: another worker may have the job by now
  const giveBack = () => stop.abort();
  const lose = () => (lost.abort(), stop.abort());
  leaving.addEventListener("abort", giveBack);
  let renewed = Date.now();
  const heart = setInterval(async () => {
    const sent = Date.now();
    try {
      const { cancel_requested } = await say(job, "heartbeat", { lease: LEASE }, { tries: 1 });
      renewed = sent;
      if (cancel_requested) stop.abort();
    } catch (error) {
      const refused = error instanceof Refused && [404, 409].includes(error.status);
      if (refused || sent - renewed > LEASE * 800) lose();
    }
  }, (LEASE * 1000) / 3);

  tell(job, "begun");
  try {
    const [verb, said] = await outcome(job, stop.signal);
    if (lost.signal.aborted) throw new Error("the lease is lost");
    const { state } = await say(job, verb, said, { tries: Infinity, signal: lost.signal });
    tell(job, state);
  } catch (error) {
    tell(job, `not handed in: ${error.message}`); // it runs again when its lease is over
  } finally {
    clearInterval(heart);
    leaving.removeEventListener("abort", giveBack);
  }
}

/** Call the handler; give what is to be said of the job. */
async function outcome(job, signal) {
  const handler = handlers[job.kind];
  if (!handler) return ["release", { delay: 5 }]; // another worker may know the kind
  try {
    return ["complete", { result: (await handler({ ...job, signal })) ?? null }];
  } catch (error) {
    return signal.aborted ? ["release", {}] : ["fail", failure(error)]; // a cancelled job that is released is ended
  }
}

/** Say what went wrong without the exception's own text, which may hold personal data. */
function failure(error) {
  if (error instanceof Permanent) return { code: error.code, message: error.message, retryable: false };
  const name = error?.name ?? "Error";
  return { code: name.replace(/(?<=[a-z0-9])(?=[A-Z])/g, "_").toLowerCase(), message: `${name} in the handler` };
}

const tell = (job, what) => console.log(`job ${job.id} ${job.kind} attempt ${job.attempt}: ${what}`);

async function main() {
  const draining = new AbortController(); // ends the wait for work
  const leaving = new AbortController(); // ends running jobs, too
  for (const name of ["SIGTERM", "SIGINT"]) {
    process.on(name, () => (draining.signal.aborted ? leaving : draining).abort());
  }
  console.log(`worker ${NAME} serves ${QUEUES?.join(", ") ?? "all queues"} at ${SERVER}`);
  const running = new Set();
  while (!draining.signal.aborted) {
    if (running.size >= CONCURRENCY) {
      await Promise.race(running);
      continue;
    }
    const wish = { worker: NAME, kinds: Object.keys(handlers), limit: CONCURRENCY - running.size, lease: LEASE };
    try {
      const body = { ...wish, wait: WAIT, ...(QUEUES && { queues: QUEUES }) };
      const { jobs } = await ask("/v1/claims", body, { signal: draining.signal });
      for (const job of jobs) {
        const task = run(job, leaving.signal).finally(() => running.delete(task));
        running.add(task);
      }
    } catch (error) {
      if (draining.signal.aborted) break;
      console.error(`waiting for the server: ${error.message}`);
      if (error instanceof Refused && [401, 403, 422].includes(error.status)) process.exit(1);
      await sleep(1000);
    }
  }
  await Promise.all(running);
}

await main();
