"use strict";
// Stored maps back to numbers: what cosines.py and attention.py have packed.
const explorerMaps = (() => {
  const bytesOf = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));

  async function inflate(bytes) {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // [points, points] cosines from the residuals of the lower triangle.
  async function cosines(bytes, points, levels) {
    const residuals = await inflate(bytes);
    const steps = new Uint8Array(points * points).fill(levels - 1); // the diagonal stays: cosine 1
    for (let row = 1, next = 0; row < points; row++) {
      let left = 0, corner = 0;
      for (let column = 0; column < row; column++) {
        const above = steps[(row - 1) * points + column];
        left = (left + above - corner + residuals[next++] + 2 * levels) % levels;
        corner = above;
        steps[row * points + column] = steps[column * points + row] = left;
      }
    }
    return (query, key) => steps[query * points + key] * 2 / (levels - 1) - 1;
  }

  // Weights of `rows` queries from the rows' largest (float32, little-endian) and levels of the square root.
  async function attention(bytes, rows, levels) {
    const raw = await inflate(bytes);
    const largest = new DataView(raw.buffer, 0, 4 * rows);
    const columns = (raw.length - 4 * rows) / rows;
    return (query, key) => (raw[4 * rows + query * columns + key] / levels) ** 2 * largest.getFloat32(4 * query, true);
  }

  return { bytesOf, cosines, attention };
})();
