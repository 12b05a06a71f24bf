// The protocol between a node and the benchmark; see nodes_test.go.
import { once } from "node:events";

export const url = process.env.QUEUECTL_BENCH_URL;
export const filling = process.argv[2] === "fill";
export const size = Number(process.env.QUEUECTL_BENCH_NODE);
export const block = Number(process.env.QUEUECTL_BENCH_BLOCK);

// ready prints that the node is ready and waits for a line. From then on, it prints the number of ended jobs.
export async function ready(done) {
  console.log("ready");
  await once(process.stdin, "data");
  let said = -1;
  setInterval(() => {
    if (done() !== said) console.log((said = done()));
  }, 5);
}
