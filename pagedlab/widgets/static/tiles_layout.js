// Where everything of the tile viewer goes. The same sums as in tiles_layout.py.

const SIDE = 26;
const HEAD = 18;
const PART = 15;
const APART = 10;
const LINES_APART = 12;
const SLOTS = [18, 14, 11, 9, 7, 5, 4, 3];
const SLOTS_HIGH = 300;
const MOST_CELLS = 3000;
const CELLS = [30, 24, 18, 14, 11, 9, 7, 5];
const PROGRAMS = [30, 24, 18, 14, 10, 7];
const PROGRAMS_WIDE = 250;
const PROGRAMS_HIGH = 260;

function blocksOf(count, size, parts, slot, cell, perLine) {
  const apart = slot ? APART : 1;
  const part = slot ? PART : cell / parts;
  const head = slot ? HEAD : 0;
  const line = head + parts * part + (slot ? LINES_APART : 1);
  return {
    ...{ count, size, parts, slot, cell, perLine, apart, part, head, line },
    width: SIDE + perLine * (cell + apart) - apart + 2,
    height: Math.ceil(count / perLine) * line,
    corner: (index) => [SIDE + (index % perLine) * (cell + apart), Math.floor(index / perLine) * line + head],
  };
}

function layOutBlocks(width, count, size, parts) {
  const room = width - SIDE;
  let found;
  if (count * size * parts <= MOST_CELLS && size) {
    const fitting = SLOTS.filter((slot) => slot * size <= room);
    for (const slot of fitting.length ? fitting : [room / Math.max(1, size)]) {
      const perLine = Math.max(1, Math.floor((room + APART) / (slot * size + APART)));
      found = blocksOf(count, size, parts, slot, slot * size, Math.min(perLine, Math.max(1, count)));
      if (found.height <= SLOTS_HIGH) return found;
    }
    if (found.height <= 2 * SLOTS_HIGH) return found;
  }
  for (const cell of CELLS) {
    const perLine = Math.max(1, Math.floor(room / (cell + 1)));
    found = blocksOf(count, size, parts, 0, cell, Math.min(perLine, Math.max(1, count)));
    if (found.height <= SLOTS_HIGH) break;
  }
  return found;
}

function layOutPrograms([columns, rows, layers]) {
  let found;
  for (const cell of PROGRAMS) {
    const head = layers === 1 ? HEAD : 2 * HEAD;
    const layer = head + rows * cell + 8;
    found = {
      ...{ columns, rows, layers, cell, head, layer },
      width: SIDE + columns * cell + 2,
      height: layers * layer,
      corner: (x, y, z) => [SIDE + x * cell, z * layer + head + y * cell],
    };
    if (found.width <= PROGRAMS_WIDE && found.height <= PROGRAMS_HIGH) break;
  }
  return found;
}
