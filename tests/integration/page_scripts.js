// What tests do on the page, and what they ask of it.
function fill(label, text) {
  const found = [...document.querySelectorAll("label")].find((one) => one.textContent.startsWith(label));
  const input = found.querySelector("input, textarea, select");
  input.value = text;
  input.dispatchEvent(new Event("input", { bubbles: true }));
  return true;
}

function press(text) {
  const open = document.getElementById("dialog").open;
  const buttons = [...document.querySelectorAll(open ? "dialog button" : "button")];
  const found = buttons.find((one) => one.textContent.trim() === text && !one.hidden && !one.disabled);
  if (found) found.click();
  return Boolean(found);
}

// Controls that a screen reader has no name for.
function unnamed() {
  return [...document.querySelectorAll("button, a, input, select, textarea")].filter((one) => {
    const around = one.closest("label");
    return !one.closest("[hidden]") && !(one.getAttribute("aria-label") || one.textContent.trim() || (around && around.textContent.trim()));
  }).map((one) => one.outerHTML);
}

// Texts with less contrast than WCAG's level AA asks for.
function faint() {
  const parts = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const light = (text) => {
    const [r, g, b] = parts(text).map((value) => value / 255).map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      const found = parts(colour);
      if (found.length === 3 || found[3] > 0.99) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const own = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.querySelectorAll("body *")].filter((one) => own(one) && one.offsetParent !== null && !one.disabled).map((one) => {
    const [high, low] = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    return ratio < 4.5 ? `${one.tagName} ${one.textContent.trim().slice(0, 30)} ${ratio.toFixed(2)}` : null;
  }).filter(Boolean);
}
