// graphile-worker, on Node: the same roles as roles.py, found by NODE_PATH.
// Tuned as its performance page has it: 24 jobs at once, a local queue of 500, completions in batches.
"use strict";
const { run, runMigrations, makeWorkerUtils, Logger } = require("graphile-worker");
const readline = require("node:readline");

const WARM_UP = 20;
const GAP = 20;
const BULK = 1000;
const TUNED = {
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};

const connectionString = process.env.BENCH_URL;
const logger = new Logger(() => () => {});
const [role, argument] = process.argv.slice(2);
const say = (facts) => process.stdout.write(JSON.stringify(facts) + "\n");
const now = () => (performance.timeOrigin + performance.now()) / 1000;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

function ready() {
  say({ ready: true });
  const input = readline.createInterface({ input: process.stdin });
  return new Promise((done) => input.once("line", () => done(input.close())));
}

async function work() {
  let handled = 0;
  let first = 0;
  let said = 0;
  const noop = ({ seq }) => {
    if (seq >= 0) return say({ seq, started: now() });
    if (!handled) first = now();
    handled += 1;
  };
  await ready();
  setInterval(() => {
    if (handled === said) return;
    said = handled;
    say({ handled, first });
  }, 10);
  const worker = { connectionString, ...(argument === "tuned" ? TUNED : {}) };
  const runner = await run({ preset: { worker }, logger, taskList: { noop } });
  await runner.promise;
}

async function send(utils, jobs) {
  let due = performance.now();
  for (let seq = -WARM_UP; seq < jobs; seq += 1) {
    due = Math.max(due + GAP, performance.now());
    await pause(due - performance.now());
    const called = now();
    await utils.addJob("noop", { seq });
    const returned = now();
    if (seq >= 0) say({ seq, called, returned });
  }
}

async function enqueue(jobs, enqueued, one) {
  const started = performance.now();
  const cpu = process.cpuUsage();
  await one();
  const seconds = (performance.now() - started) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  say({ rate: jobs / seconds, cpu_us: (user + system) / jobs, enqueued });
}

async function single(utils, jobs) {
  for (let n = 0; n < WARM_UP; n += 1) await utils.addJob("noop", { seq: -1 });
  await enqueue(jobs, jobs + WARM_UP, async () => {
    for (let n = 0; n < jobs; n += 1) await utils.addJob("noop", { seq: -1 });
  });
}

async function bulk(utils, jobs) {
  await enqueue(jobs, jobs, async () => {
    for (let start = 0; start < jobs; start += BULK) {
      const length = Math.min(BULK, jobs - start);
      await utils.addJobs(Array.from({ length }, () => ({ identifier: "noop", payload: { seq: -1 } })));
    }
  });
}

async function main() {
  if (role === "work") return work();
  if (role === "setup") {
    await ready();
    await runMigrations({ connectionString, logger });
    return say({ done: true });
  }
  const utils = await makeWorkerUtils({ connectionString, logger });
  await ready();
  await { single, bulk, send }[role](utils, Number(argument));
  await utils.release();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
