// What is chosen (picture, layer, place, map), and the maps drawn for it.
(() => {
  const room = document.getElementById("explorer");
  const find = (name) => room.querySelector(name);
  const facts = JSON.parse(find("#explorer-facts").textContent);
  const { models, pictures } = facts;
  const panels = [...room.querySelectorAll("[data-model]")];
  const picture = find("#explorer-picture"), slider = find("#explorer-layer"), status = find("#explorer-status");
  const common = find("#explorer-common"), through = find("#explorer-through");
  const choices = (name) => [...room.querySelectorAll(`input[name=explorer-${name}]`)];
  const image = (number) => `data:image/jpeg;base64,${facts.images[number]}`;
  const lead = models.reduce((best, model) => (model.layers.length > best.layers.length ? model : best));
  const finest = models.reduce((best, model) => (cells(model) > cells(best) ? model : best));

  // `place` is (down, across) in shares of the picture, so that it means the same in every grid.
  const state = { picture: 0, stop: lead.layers.length - 1, place: centre(finest, finest.grid.map((n) => n >> 1)), map: "cosine", held: false };
  const unpacked = new Map(); // maps of the picture that is shown
  let turn = 0; // of the latest drawing; an earlier one that is still unpacking gives up

  function cells(model) { return model.grid[0] * model.grid[1]; }
  function centre(model, patch) { return patch.map((n, axis) => (n + 0.5) / model.grid[axis]); }
  function patchAt(model, place) {
    return place.map((share, axis) => Math.min(Math.max(Math.floor(share * model.grid[axis]), 0), model.grid[axis] - 1));
  }
  function layerOf(model) { // place among the model's layers of the one nearest in relative depth
    const goal = lead.layers[state.stop] / lead.depth;
    const away = model.layers.map((layer) => Math.abs(layer / model.depth - goal));
    return away.indexOf(Math.min(...away));
  }
  const name = ([row, column]) => `row ${row}, column ${column}`;
  const short = (value) => (Math.abs(value) < 0.005 ? 0 : value).toFixed(2).replace("-", "\u2212");
  const percent = (value) => (value === 0 ? "0 %" : value < 0.0005 ? "< 0.1 %" : `${(100 * value).toFixed(1)} %`).replace(" %", "\u00a0%");

  // The maps of one layer, unpacked when first wanted.
  async function maps(number) {
    const model = models[number], layer = layerOf(model), key = `${number} ${layer}`;
    if (!unpacked.has(key)) {
      const lengths = model.maps[state.picture];
      const start = lengths.slice(0, layer).reduce((sum, one) => sum + one[1] + one[3], 0);
      const [levels, bytes, weightLevels, weightBytes] = lengths[layer];
      const text = document.getElementById(`explorer-maps-${number}-${state.picture}`).textContent;
      const from = Math.floor(start / 3) * 4; // base64: three bytes are four letters
      const part = explorerMaps.bytesOf(text.slice(from, Math.ceil((start + bytes + weightBytes) / 3) * 4)).subarray(start % 3);
      const points = cells(model) + model.cls;
      unpacked.set(key, Promise.all([
        explorerMaps.cosines(part.subarray(0, bytes), points, levels),
        weightBytes ? explorerMaps.attention(part.subarray(bytes, bytes + weightBytes), points, weightLevels) : null,
      ]));
    }
    return unpacked.get(key);
  }

  // What one model shows: a value per patch, the range of its colours, and words; `values` is null where there is no such map.
  async function look(number) {
    const model = models[number], [cosine, attention] = await maps(number);
    const [height, width] = model.grid, cls = Number(model.cls), first = cls + Number(model.registers);
    const patch = patchAt(model, state.place), here = patch[0] * width + patch[1];
    const ofCls = state.map.startsWith("cls"), weights = state.map.endsWith("attention"), query = ofCls ? 0 : cls + here;
    const value = weights ? attention && ((key) => attention(query, first + key)) : (key) => cosine(query, cls + key);
    const shown = { patch, layer: model.layers[layerOf(model)], values: null, words: "" };
    if (ofCls && !cls) return { ...shown, words: "The model has no CLS token." };
    if (!value) return { ...shown, words: shown.layer === 0 ? "Layer 0 has no attention." : "The attention of this model could not be seen." };
    const values = Float64Array.from({ length: height * width }, (_, key) => value(key));
    const others = ofCls || weights ? values : values.filter((_, key) => key !== here);
    const high = others.reduce((a, b) => Math.max(a, b), -1), low = weights ? 0 : others.reduce((a, b) => Math.min(a, b), 1);
    const write = weights ? percent : short;
    const best = ofCls || weights ? values.indexOf(high) : values.findIndex((one, key) => one === high && key !== here);
    const top = `highest ${write(high)} at ${name([Math.floor(best / width), best % width])}`;
    const words = ofCls ? [`this patch ${write(values[here])}`] : weights ? [`to itself ${percent(values[here])}`] : [];
    if (weights && cls) words.push(`to CLS ${percent(attention(query, 0))}`);
    if (weights && model.registers) words.push(`to registers ${percent(attention(query, cls))}`);
    if (weights) words.push(`${values.filter((one) => one === 0).length} of ${values.length} patches get exactly 0`);
    if (!weights && !ofCls && cls) words.push(`with CLS ${short(cosine(query, 0))}`);
    return { ...shown, values, low, high, write, words: [...words, high < low ? "no other patch" : top].join("; ") + "." };
  }

  // Inferno, as the page's other maps: dark is low.
  const COLOURS = ["000004", "110a30", "320a5e", "57106e", "781c6d", "9a2865", "bc3754", "d84c3e", "ed6925", "f98e09", "fbb61a", "f4df53", "fcffa4"]
    .map((code) => [0, 2, 4].map((at) => parseInt(code.slice(at, at + 2), 16)));
  find(".explorer-panels").style.setProperty("--explorer-scale", `linear-gradient(to right, ${COLOURS.map((tone) => `rgb(${tone})`)})`);
  function colour(share) {
    const at = Math.min(Math.max(share, 0), 1) * (COLOURS.length - 1), low = Math.min(Math.floor(at), COLOURS.length - 2);
    return COLOURS[low].map((tone, channel) => tone + (at - low) * (COLOURS[low + 1][channel] - tone));
  }

  function paint(panel, model, seen, low, high) {
    const canvas = panel.querySelector("canvas"), [height, width] = model.grid;
    canvas.width = width; // clears it, too
    canvas.height = height;
    const ends = panel.querySelectorAll(".explorer-scale span");
    ends[0].textContent = seen.values ? seen.write(low) : "";
    ends[1].textContent = seen.values ? seen.write(high) : "";
    panel.querySelector(".explorer-scale").style.visibility = seen.values ? "" : "hidden";
    if (!seen.values) return;
    const pixels = new ImageData(width, height);
    seen.values.forEach((value, key) => pixels.data.set([...colour((value - low) / (high - low || 1)), 255], 4 * key));
    canvas.getContext("2d").putImageData(pixels, 0, 0);
  }

  function mark(stage, model, patch) {
    const box = stage.querySelector(".explorer-mark"), [height, width] = model.grid;
    box.hidden = false;
    box.style.cssText = `top:${100 * patch[0] / height}%;left:${100 * patch[1] / width}%;height:${100 / height}%;width:${100 / width}%`;
  }

  async function draw(spoken) {
    const mine = ++turn;
    const seen = await Promise.all(models.map((_, number) => look(number)));
    if (mine !== turn) return;
    const drawn = seen.filter((one) => one.values);
    const low = Math.min(...drawn.map((one) => one.low)), high = Math.max(...drawn.map((one) => one.high));
    seen.forEach((one, number) => {
      const panel = panels[number], model = models[number];
      if (common.checked) paint(panel, model, one, low, high);
      else paint(panel, model, one, one.low, one.high);
      mark(panel.querySelector(".explorer-stage"), model, one.patch);
      panel.querySelector(".explorer-of").textContent = `layer ${one.layer} of ${model.depth}`;
      panel.querySelector(".explorer-read").textContent = one.words[0].toUpperCase() + one.words.slice(1);
      panel.querySelector("canvas").setAttribute("aria-label", `${title()}, ${model.label}, layer ${one.layer}, ${name(one.patch)}: ${one.words}`);
    });
    const patch = patchAt(finest, state.place);
    mark(picture, finest, patch);
    find("#explorer-place").textContent = name(patch) + (state.held ? ", held" : "");
    room.classList.toggle("explorer-held", state.held);
    find("output").textContent = `${lead.layers[state.stop]} of ${lead.depth}`;
    slider.setAttribute("aria-valuetext", `layer ${lead.layers[state.stop]} of ${lead.depth}`);
    picture.setAttribute("aria-label", `Patch of ${pictures[state.picture]}: ${name(patch)}${state.held ? ", held" : ""}`);
    room.dataset.drawn = String(mine); // for whoever waits
    if (spoken) speak(`${title()}, ${name(patch)}. ${models.map((model, number) => `${model.label}, layer ${seen[number].layer}: ${seen[number].words}`).join(" ")}`);
  }

  function title() { return choices("map").find((input) => input.checked).parentElement.textContent.trim(); }

  let waiting;
  function speak(text) { // once the keys rest
    clearTimeout(waiting);
    waiting = setTimeout(() => { status.textContent = text; }, 400);
  }

  // A view as a link, and back.
  function link() {
    const query = new URLSearchParams({ picture: state.picture + 1, layer: lead.layers[state.stop], at: state.place.map((n) => n.toFixed(4)).join(","), map: state.map });
    return `${location.href.split("#")[0]}#explorer?${query.toString().replaceAll("%2C", ",")}`;
  }
  function follow() {
    const [place, query] = location.hash.split("?");
    if (place !== "#explorer" || !query) return false;
    const wanted = new URLSearchParams(query), number = Number(wanted.get("picture")) - 1;
    if (number in pictures) state.picture = number;
    const stop = lead.layers.indexOf(Number(wanted.get("layer")));
    if (wanted.has("layer") && stop >= 0) state.stop = stop;
    const at = (wanted.get("at") || "").split(",").map(Number);
    if (at.length === 2 && at.every((share) => share >= 0 && share < 1)) state.place = at;
    if (choices("map").some((input) => input.value === wanted.get("map"))) state.map = wanted.get("map");
    state.held = true;
    room.scrollIntoView();
    return true;
  }

  function change(what, { spoken = true, linked = true } = {}) {
    const other = "picture" in what && what.picture !== state.picture;
    Object.assign(state, what);
    if (other) showPicture();
    choices("picture")[state.picture].checked = true;
    choices("map").find((input) => input.value === state.map).checked = true;
    slider.value = state.stop;
    if (linked) history.replaceState(null, "", link());
    return draw(spoken).catch((error) => { status.textContent = `The maps can't be unpacked (${error.message}).`; });
  }
  function showPicture() {
    unpacked.clear();
    picture.querySelector("img").src = image(models[0].images[state.picture]);
    find("#explorer-name").textContent = pictures[state.picture];
    panels.forEach((panel, number) => { panel.querySelector("img").src = image(models[number].images[state.picture]); });
  }

  // Pointing: a mouse moves the patch until a click holds it; a finger holds at once.
  function pointed(stage, model, event) {
    const box = stage.getBoundingClientRect();
    const place = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
    return centre(model, patchAt(model, place));
  }
  function readAt(place) {
    models.forEach(async (model, number) => {
      const seen = await look(number), [row, column] = patchAt(model, place);
      if (seen.values && state.held) panels[number].querySelector(".explorer-of").textContent = `at the pointer ${seen.write(seen.values[row * model.grid[1] + column])}`;
    });
  }
  function point(stage, model) {
    const same = (place) => place.every((share, axis) => share === state.place[axis]);
    stage.addEventListener("pointermove", (event) => {
      const place = pointed(stage, model, event);
      if (event.pointerType !== "mouse" ? event.buttons : !state.held) { if (!same(place)) change({ place }, { spoken: false, linked: false }); }
      else if (state.held) readAt(place);
    });
    stage.addEventListener("pointerleave", () => { if (state.held) draw(false); });
    let release = false; // whether the press began on the held patch
    stage.addEventListener("pointerdown", (event) => { release = state.held && same(pointed(stage, model, event)); });
    stage.addEventListener("click", (event) => change({ place: pointed(stage, model, event), held: !release }));
  }

  picture.addEventListener("keydown", (event) => {
    const patch = patchAt(finest, state.place), last = finest.grid.map((n) => n - 1);
    const to = (row, column) => ({ place: centre(finest, [Math.min(Math.max(row, 0), last[0]), Math.min(Math.max(column, 0), last[1])]), held: true });
    const stop = (by) => ({ stop: Math.min(Math.max(state.stop + by, 0), lead.layers.length - 1) });
    const does = {
      ArrowUp: to(patch[0] - 1, patch[1]), ArrowDown: to(patch[0] + 1, patch[1]),
      ArrowLeft: to(patch[0], patch[1] - 1), ArrowRight: to(patch[0], patch[1] + 1),
      Home: to(patch[0], 0), End: to(patch[0], last[1]), PageUp: stop(1), PageDown: stop(-1),
      Enter: { held: true }, " ": { held: !state.held }, Escape: { held: false },
    }[event.key];
    if (!does || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    change(does);
  });
  choices("picture").forEach((input, number) => {
    input.parentElement.querySelector("img").src = image(models[0].images[number]);
    input.addEventListener("change", () => change({ picture: number }));
  });
  choices("map").forEach((input) => input.addEventListener("change", () => change({ map: input.value })));
  slider.addEventListener("input", () => change({ stop: Number(slider.value) }));
  common.addEventListener("change", () => draw(false));
  through.addEventListener("change", () => room.classList.toggle("explorer-through", through.checked));
  find("form").addEventListener("submit", (event) => event.preventDefault());
  find("#explorer-copy").addEventListener("click", async () => {
    history.replaceState(null, "", link());
    try {
      await navigator.clipboard.writeText(link());
      status.textContent = "The link to this view is copied.";
    } catch {
      const place = find("#explorer-link");
      place.hidden = false;
      place.querySelector("input").value = link();
      place.querySelector("input").select();
    }
  });
  addEventListener("hashchange", () => { if (follow()) { showPicture(); change({}, { linked: false }); } });

  point(picture, finest);
  panels.forEach((panel, number) => {
    const stage = panel.querySelector(".explorer-stage"), [height, width] = models[number].size;
    stage.style.aspectRatio = `${width} / ${height}`;
    point(stage, models[number]);
  });
  picture.style.aspectRatio = `${models[0].size[1]} / ${models[0].size[0]}`;
  if (typeof DecompressionStream === "undefined") {
    status.textContent = "This browser is too old to unpack the maps (it lacks DecompressionStream; any browser since 2023 has it).";
    return;
  }
  find("#explorer-live").hidden = false;
  follow();
  showPicture();
  change({}, { spoken: false, linked: false });
})();
