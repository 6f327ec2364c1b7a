// Values of a mark: under the pointer, or where the keyboard is.
const tip = document.createElement('div');
tip.id = 'tip';
tip.setAttribute('role', 'status');
tip.hidden = true;
document.body.append(tip);
let on = null;

function show(mark) {
  if (mark === on) return;
  if (on) on.classList.remove('on');
  on = mark;
  tip.hidden = !mark;
  if (!mark) return;
  mark.classList.add('on');
  tip.textContent = mark.dataset.tip;
  const at = mark.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const middle = at.left + at.width / 2 - size.width / 2;
  const most = document.documentElement.clientWidth - size.width - 8;
  const above = at.top - size.height - 8;
  tip.style.left = `${Math.max(8, Math.min(middle, most)) + scrollX}px`;
  tip.style.top = `${(above > 0 ? above : at.bottom + 8) + scrollY}px`;
}

// Without this script, a browser shows the title of a point by itself.
for (const title of document.querySelectorAll('.area title')) {
  title.parentElement.dataset.tip = title.textContent;
  title.remove();
}

for (const area of document.querySelectorAll('.area')) {
  const marks = [...area.querySelectorAll('[data-tip]')];
  if (!marks.length) continue;
  const cloud = marks[0].matches('path');
  const far = (mark, event) => {
    const r = mark.getBoundingClientRect();
    const across = r.left + r.width / 2 - event.clientX;
    const up = mark.classList.contains('tall') ? 0 : r.top + r.height / 2 - event.clientY;
    return cloud ? Math.hypot(across, up) : Math.abs(across) + Math.abs(up) / 4;
  };
  area.addEventListener('pointermove', event => {
    let best = null, least = cloud ? 24 : Infinity;
    for (const mark of marks) {
      const distance = far(mark, event);
      if (distance < least) [best, least] = [mark, distance];
    }
    show(best);
  });
  area.addEventListener('pointerleave', () => show(null));
  area.addEventListener('focusin', event => show(event.target.closest('[data-tip]')));
  area.addEventListener('focusout', () => show(null));
  area.addEventListener('keydown', event => {
    const last = marks.length - 1, at = marks.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    marks[Math.max(0, Math.min(to, last))].focus();
  });
}
addEventListener('keydown', event => event.key === 'Escape' && show(null));
