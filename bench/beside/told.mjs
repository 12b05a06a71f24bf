// How a node and the benchmark talk; see nodes_test.go.
import { once } from "node:events";

export const url = process.env.QUEUECTL_BESIDE_URL;
export const filling = process.argv[2] === "fill";
export const size = Number(process.env.QUEUECTL_BESIDE_NODE);
export const block = Number(process.env.QUEUECTL_BESIDE_BLOCK);

// ready says that the node is, waits to be told to begin, and says from then on how many jobs have ended.
export async function ready(done) {
  console.log("ready");
  await once(process.stdin, "data");
  let said = -1;
  setInterval(() => {
    if (done() !== said) console.log((said = done()));
  }, 5);
}
