// graphile-worker with the settings of its own benchmark: jobs are prefetched, and completed in batches.
import { EventEmitter } from "node:events";
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import { block, filling, ready, size, url } from "./protocol.mjs";

const logger = new Logger(() => () => {});
if (filling) {
  await runMigrations({ connectionString: url, logger });
  const utils = await makeWorkerUtils({ connectionString: url, logger });
  for (let left = size; left > 0; left -= 1000) {
    await utils.addJobs(Array.from({ length: Math.min(left, 1000) }, () => ({ identifier: "nothing", payload: {} })));
  }
  await utils.release();
} else {
  let done = 0;
  const events = new EventEmitter();
  events.on("job:complete", () => done++);
  await ready(() => done);
  const runner = await run({
    taskList: { nothing: async () => {} },
    events,
    preset: {
      worker: { connectionString: url, concurrentJobs: 24, maxPoolSize: 25, logger, localQueue: { size: block }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
    },
  });
  await runner.promise;
}
