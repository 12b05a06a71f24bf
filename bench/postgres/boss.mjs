// pg-boss: two loops fetch and complete jobs in blocks. Together, the blocks are as large as those of queuectl.
import PgBoss from "pg-boss";
import { block, filling, ready, size, url } from "./protocol.mjs";

const boss = new PgBoss({ connectionString: url, supervise: false, schedule: false });
await boss.start();
if (filling) {
  await boss.createQueue("nothing");
  for (let left = size; left > 0; left -= 1000) {
    await boss.insert(Array.from({ length: Math.min(left, 1000) }, () => ({ name: "nothing", data: {} })));
  }
  await boss.stop();
} else {
  let done = 0;
  await ready(() => done);
  const loop = async () => {
    for (;;) {
      const jobs = await boss.fetch("nothing", { batchSize: block / 2 });
      if (!jobs?.length) {
        await new Promise((again) => setTimeout(again, 10));
        continue;
      }
      await boss.complete("nothing", jobs.map((job) => job.id));
      done += jobs.length;
    }
  };
  await Promise.all([loop(), loop()]);
}
