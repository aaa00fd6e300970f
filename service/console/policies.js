// The policies that a question may name, and which of them take a ratio: those of blend/fuse/policy.py, in words.

export const POLICIES = {
  ask: { takesRatio: true, hint: "The tokens that the question looks at most are recomputed." },
  hybrid: { takesRatio: true, hint: "The first tokens of each chunk, and those that differ most, are recomputed." },
  deviation: { takesRatio: true, hint: "The tokens that differ most are recomputed." },
  heads: { takesRatio: true, hint: "The first tokens of each chunk are recomputed." },
  replay: { takesRatio: true, hint: "The last cached tokens run again through layers that keep a state." },
  reuse: { takesRatio: false, hint: "Caches are used as they are stored." },
  prefix: { takesRatio: false, hint: "Only what stands at the very beginning is reused." },
  full: { takesRatio: false, hint: "Nothing is reused: the whole prompt is computed.", label: "full prefill" },
};

export const isFixed = (policy) => POLICIES[policy.split("/")[0]]?.takesRatio === false;
