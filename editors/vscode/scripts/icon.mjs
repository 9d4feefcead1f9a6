// Draw the icon, as images/icon.svg for people and images/icon.png for the marketplace, from one list of rounded rectangles.
import { writeFileSync } from "node:fs";
import { deflateSync } from "node:zlib";

const SIZE = 256;
const CODE = "#cdd6f4";
const GAP = "#a6e3a1";

/** Left, top, width, height, radius, colour, opacity. Lines of code, and in the middle one a gap that comes out of noise. */
const SHAPES = [
  [0, 0, 256, 256, 56, "#1e1e2e", 1],
  [48, 56, 112, 20, 10, CODE, 1],
  [76, 94, 60, 20, 10, CODE, 1],
  [148, 94, 60, 20, 10, GAP, 1],
  [76, 132, 26, 20, 10, GAP, 1],
  [110, 132, 20, 20, 10, GAP, 0.8],
  [138, 132, 20, 20, 10, GAP, 0.55],
  [166, 132, 20, 20, 10, GAP, 0.35],
  [194, 132, 14, 20, 7, GAP, 0.2],
  [48, 180, 76, 20, 10, CODE, 1],
  [132, 180, 40, 20, 10, CODE, 0.6],
];

function svg() {
  const rects = SHAPES.map(
    ([x, y, w, h, r, fill, opacity]) =>
      `  <rect x="${x}" y="${y}" width="${w}" height="${h}" rx="${r}" fill="${fill}"${opacity < 1 ? ` opacity="${opacity}"` : ""}/>`,
  );
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${SIZE} ${SIZE}">\n${rects.join("\n")}\n</svg>\n`;
}

/** How much of a pixel a rounded rectangle covers, by looking at 16 points of it. */
function coverage([left, top, width, height, radius], px, py) {
  let inside = 0;
  for (let sub = 0; sub < 16; sub++) {
    const x = px + ((sub % 4) + 0.5) / 4;
    const y = py + (Math.floor(sub / 4) + 0.5) / 4;
    const dx = Math.max(left + radius - x, x - (left + width - radius), 0);
    const dy = Math.max(top + radius - y, y - (top + height - radius), 0);
    if (dx * dx + dy * dy <= radius * radius) inside += 1;
  }
  return inside / 16;
}

function pixels() {
  const rows = Buffer.alloc((SIZE * 4 + 1) * SIZE);
  for (let y = 0; y < SIZE; y++) {
    for (let x = 0; x < SIZE; x++) {
      let [red, green, blue, alpha] = [0, 0, 0, 0];
      for (const shape of SHAPES) {
        const over = coverage(shape, x, y) * shape[6];
        if (over === 0) continue;
        const [r, g, b] = [1, 3, 5].map((at) => parseInt(shape[5].slice(at, at + 2), 16));
        const both = over + alpha * (1 - over);
        const mix = (top, below) => (top * over + below * alpha * (1 - over)) / both;
        [red, green, blue, alpha] = [mix(r, red), mix(g, green), mix(b, blue), both];
      }
      rows.set([red, green, blue, alpha * 255].map(Math.round), y * (SIZE * 4 + 1) + 1 + x * 4);
    }
  }
  return rows;
}

function crc(bytes) {
  let sum = 0xffffffff;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit++) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0);
  }
  return (sum ^ 0xffffffff) >>> 0;
}

function chunk(name, data) {
  const body = Buffer.concat([Buffer.from(name, "latin1"), data]);
  const head = Buffer.alloc(4);
  const tail = Buffer.alloc(4);
  head.writeUInt32BE(data.length);
  tail.writeUInt32BE(crc(body));
  return Buffer.concat([head, body, tail]);
}

function png() {
  const header = Buffer.alloc(13);
  header.writeUInt32BE(SIZE, 0);
  header.writeUInt32BE(SIZE, 4);
  header.set([8, 6, 0, 0, 0], 8); // eight bits, with alpha
  return Buffer.concat([
    Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]),
    chunk("IHDR", header),
    chunk("IDAT", deflateSync(pixels(), { level: 9 })),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

writeFileSync("images/icon.svg", svg());
writeFileSync("images/icon.png", png());
