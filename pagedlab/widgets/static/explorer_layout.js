// Where everything of the block-table explorer goes: the same sums as explorer_layout.py, whose comments say why.

const TOP = 50;
const SLOT = 34;
const BETWEEN = 12;
const HEAD = 46;
const LOGICAL = 24;
const CHIP = 44;
const PHYSICAL = 66;
const COUNT = 34;
const TABLE = 46;
const APART = 12;
const COLUMN_HIGH = 620;
const WORDS_HIGH = 800;
const BLOCKS_HIGH = 460;
const CELLS = [58, 44, 36, 28, 22, 16, 12, 9, 7, 5, 4];
const ROWS = [1, 2, 4, 8, 10, 16, 20, 32, 40, 50, 64, 80, 100, 128, 160, 200];
const SMALL = 22; // cells below this size have no words in them

// `moments`: for every step, the number of blocks of each sequence.
function layOut(width, numBlocks, blockSize, moments) {
  const size = Math.max(1, blockSize);
  const at = { width, numBlocks, blockSize, left: "none", right: "blocks", leftWidth: 0, rightX: 0, rightWidth: width };
  const highest = (high) =>
    Math.max(0, ...moments.map((sizes) => sizes.reduce((sum, count) => sum + (count ? high(count) : 0), 0)));
  const poolHigh = (row, cell) => Math.ceil(numBlocks / row) * cell;
  let leftHigh = 0;
  let rightHigh = 0;
  if (moments.some((sizes) => sizes.length)) {
    const middle = width > 700 ? 60 : 34;
    Object.assign(at, wordsFit(width - middle, numBlocks, size));
    const line = SLOT * Math.ceil(size / at.perLine) + BETWEEN;
    const strip = at.slot * Math.min(at.perLine, size);
    leftHigh = highest((count) => HEAD + count * line);
    rightHigh = Math.ceil(numBlocks / at.columns) * line;
    at.left = blockSize && leftHigh <= WORDS_HIGH ? "words" : "blocks";
    at.right = at.left === "words" && rightHigh <= WORDS_HIGH ? "words" : "blocks";
    at.leftWidth = at.left === "words" ? LOGICAL + strip + CHIP : (width - middle) / 2;
    const words = at.right === "words";
    at.rightWidth = words ? at.columns * (PHYSICAL + strip + COUNT) : width - at.leftWidth - middle;
    at.rightX = words ? Math.min(at.leftWidth + 2.5 * middle, width - at.rightWidth) : at.leftWidth + middle;
    if (at.left === "blocks") {
      const tablesHigh = (row, cell) => highest((count) => Math.max(24, Math.ceil(count / row) * cell) + APART);
      [at.leftCell, at.leftRow] = cellsFit(at.leftWidth - TABLE, tablesHigh);
      leftHigh = tablesHigh(at.leftRow, at.leftCell);
    }
  }
  if (at.right === "blocks") {
    [at.rightCell, at.rightRow] = cellsFit(at.rightWidth - TABLE, poolHigh);
    rightHigh = poolHigh(at.rightRow, at.rightCell);
  }
  at.height = TOP + Math.max(leftHigh, rightHigh);
  at.blockHeight = SLOT * Math.ceil(size / (at.perLine || 1));
  at.blockWidth = (at.slot || 0) * Math.min(at.perLine || 1, size);

  at.pool = (block) => {
    const [row, column] = divmod(block, at.right === "words" ? at.columns : at.rightRow);
    if (at.right === "words") {
      const x = at.rightX + PHYSICAL + column * (PHYSICAL + at.blockWidth + COUNT);
      return { x, y: TOP + row * (at.blockHeight + BETWEEN), w: at.blockWidth, h: at.blockHeight };
    }
    const cell = at.rightCell;
    return { x: at.rightX + TABLE + column * cell, y: TOP + row * cell, w: cell, h: cell };
  };
  at.tables = (sizes) => {
    let y = TOP;
    return sizes.map((count) => {
      const top = y;
      if (count && at.left === "words") y += HEAD + count * (at.blockHeight + BETWEEN);
      else if (count) y += Math.max(24, Math.ceil(count / at.leftRow) * at.leftCell) + APART;
      return top;
    });
  };
  at.logical = (top, logical) => {
    if (at.left === "words") {
      const y = top + HEAD + logical * (at.blockHeight + BETWEEN);
      return { x: LOGICAL, y, w: at.blockWidth, h: at.blockHeight };
    }
    const [row, column] = divmod(logical, at.leftRow);
    const cell = at.leftCell;
    return { x: TABLE + column * cell, y: top + row * cell, w: cell, h: cell };
  };
  at.slotIn = (box, offset) => {
    const [line, column] = divmod(offset, at.perLine);
    return { x: box.x + column * at.slot, y: box.y + line * SLOT, w: at.slot, h: SLOT };
  };
  return at;
}

const divmod = (a, b) => [Math.floor(a / b), a % b];

function wordsFit(width, numBlocks, blockSize) {
  let found = null;
  let slot = 0;
  let perLine = 1;
  for (perLine of [...new Set([Math.min(blockSize, 8), Math.min(blockSize, 4)])]) {
    for (const columns of [1, 2, 3]) {
      slot = (width - LOGICAL - CHIP - columns * (PHYSICAL + COUNT)) / (perLine * (1 + columns));
      if (slot < (columns === 1 ? 33 : 46)) break;
      found = { perLine, columns, slot: Math.min(slot, 76) };
      const line = SLOT * Math.ceil(blockSize / perLine) + BETWEEN;
      if (Math.ceil(numBlocks / columns) * line <= COLUMN_HIGH) break;
    }
    if (found) return found;
  }
  return { perLine, columns: 1, slot: Math.max(slot, 24) };
}

function cellsFit(width, high) {
  let fit = [];
  for (const cell of CELLS) {
    const row = Math.max(1, ...ROWS.filter((count) => count * cell <= width));
    fit = [cell, row];
    if (high(row, cell) <= BLOCKS_HIGH && row >= 4) break;
  }
  return fit;
}

// A line from a logical block to a physical one. It keeps to the space between blocks, off the words. With `offset` it
// leads from the very token to its slot.
function wayBetween(at, start, end, offset) {
  let { x, y } = start;
  let path;
  if (at.left === "words" && offset !== null) {
    const token = at.slotIn(start, offset);
    const above = token.y === start.y && start.h > SLOT; // out of the nearest side of a block of several lines
    y = above ? start.y - BETWEEN / 2 : start.y + start.h + BETWEEN / 2;
    x = at.leftWidth;
    path = `M${token.x + token.w / 2} ${above ? start.y : token.y + SLOT}V${y}H${x}`;
  } else {
    const low = at.leftCell >= SMALL ? start.h : start.h / 2;
    [x, y] = at.left === "words" ? [at.leftWidth, start.y + start.h / 2] : [start.x + start.w / 2, start.y + low];
    path = `M${x} ${y}`;
  }
  let gate = end.x + (at.rightCell >= SMALL ? 0 : end.w / 2);
  let goal = end.y + end.h / 2;
  let tail = "";
  if (at.right === "words") {
    gate = at.rightX - 6;
    if (offset !== null) {
      const slot = at.slotIn(end, offset);
      const below = slot.y > end.y && slot.y + SLOT >= end.y + end.h;
      goal = below ? end.y + end.h + BETWEEN / 2 : end.y - BETWEEN / 2;
      tail = `H${slot.x + slot.w / 2}V${below ? end.y + end.h - 1 : slot.y + 1}`;
    } else if (end.x > at.rightX + PHYSICAL) {
      goal = end.y - BETWEEN / 2; // in a further column: along the space above it
      tail = `H${end.x - PHYSICAL + 12}V${end.y + end.h / 2 - 10}`;
    } else tail = `H${end.x - PHYSICAL + 4}`;
  }
  const bend = (gate - x) / 2;
  return `${path}C${x + bend} ${y} ${gate - bend} ${goal} ${gate} ${goal}${tail}`;
}

// A token's text as it goes into a slot: without spaces at its ends, line breaks shown, cut where too long.
function shortened(word, width) {
  let shown = word.replaceAll("\n", "\u23ce").replaceAll("\t", "\u21e5");
  shown = [...(shown.trim() || (shown ? "\u2423" : ""))].map((c) => (/\p{C}/u.test(c) ? "\ufffd" : c));
  const room = Math.max(1, Math.floor((width - 4) / 6.6));
  const wide = (characters) => characters.reduce((sum, c) => sum + (c.codePointAt(0) > 0x2e80 ? 2 : 1), 0);
  if (wide(shown) <= room) return shown.join("");
  while (shown.length && wide(shown) >= room) shown.pop();
  return shown.join("") + "\u2026";
}
