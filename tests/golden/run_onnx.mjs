// Runs ONNX nets in onnxruntime, a reader that knows nothing of Motley:
//
//     node run_onnx.mjs CxHxW NET.onnx INPUT OUTPUT [NET.onnx INPUT OUTPUT ...]
//
// INPUT holds images of that shape as raw float32; OUTPUT gets the scores of all of them likewise.
import { readFile, writeFile } from "node:fs/promises";
import * as ort from "onnxruntime-web";

// Without worker threads the program ends when its work does.
ort.env.wasm.numThreads = 1;

async function run(shape, net, input, output) {
  const bytes = await readFile(input);
  const floats = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
  const batch = floats.length / shape.reduce((a, b) => a * b, 1);
  const session = await ort.InferenceSession.create(await readFile(net), {
    executionProviders: ["wasm"],
  });
  const images = new ort.Tensor("float32", floats, [batch, ...shape]);
  const results = await session.run({ [session.inputNames[0]]: images });
  const scores = results[session.outputNames[0]].data;
  await writeFile(output, new Uint8Array(scores.buffer, scores.byteOffset, scores.byteLength));
  await session.release();
}

const [shape, ...files] = process.argv.slice(2);
if (shape === undefined || files.length === 0 || files.length % 3 !== 0) {
  console.error("usage: node run_onnx.mjs CxHxW NET.onnx INPUT OUTPUT [...]");
  process.exit(2);
}
for (let i = 0; i < files.length; i += 3) {
  await run(shape.split("x").map(Number), files[i], files[i + 1], files[i + 2]);
}
