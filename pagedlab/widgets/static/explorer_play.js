// The story, played up to any step.
function player(story) {
  let index = -1;
  let state = null;
  let grown = new Map(); // sequences that the last step let grow, and the position of the first new token
  const size = story.block_size || 1;
  // What is in each block, for when no table names it any more.
  function remember(i, from) {
    const { blocks, tokens, texts } = state.sequences[i];
    for (let logical = from; logical < blocks.length; logical += 1) {
      const some = texts.slice(logical * size, Math.min(tokens, (logical + 1) * size));
      state.words.set(blocks[logical], some.map((text, j) => text || `${story.labels[i]}${logical * size + j}`));
    }
  }
  function forward() {
    index += 1;
    const step = story.steps[index];
    for (const [block, count] of step.counts) state.counts[block] = count;
    if (step.cached) state.cached = new Set(step.cached);
    state.free.splice(step.free[0], step.free[1], ...step.free[2]);
    grown = new Map();
    for (const [i, kept, added, tokens, keptTexts, texts] of step.sequences) {
      const old = state.sequences[i] || { blocks: [], tokens: 0, texts: [] };
      if (tokens > old.tokens && index && !step.shared.length) grown.set(i, old.tokens);
      state.sequences[i] = {
        blocks: old.blocks.slice(0, kept).concat(added),
        tokens,
        texts: old.texts.slice(0, keptTexts).concat(typeof texts === "number" ? Array(texts).fill("") : texts),
      };
      remember(i, Math.min(kept, Math.floor(Math.min(keptTexts, old.tokens, tokens) / size)));
    }
  }
  return (to) => {
    if (to < index || !state) {
      index = -1;
      state = { counts: Array(story.num_blocks).fill(0), free: [], cached: new Set(), words: new Map(), sequences: [] };
    }
    while (index < to) forward();
    const holders = new Map();
    state.sequences.forEach(({ blocks }, sequence) =>
      blocks.forEach((block, logical) => {
        if (!holders.has(block)) holders.set(block, []);
        holders.get(block).push({ sequence, logical });
      }),
    );
    return { ...state, holders, grown, step: story.steps[to] };
  };
}

// The number of blocks of each sequence, for every step.
function shapes(story) {
  let sizes = [];
  return story.steps.map((step) => {
    if (step.sequences.length) sizes = [...sizes];
    for (const [i, kept, added] of step.sequences) sizes[i] = kept + added.length;
    return sizes;
  });
}
