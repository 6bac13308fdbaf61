// Assembles the page.

function draw() {
  for (const again of drawings) again();
}

function start() {
  const page = document.getElementById("page");
  if (!record.total.launches) {
    page.replaceChildren(head(), section({ class: "card empty" }, h2({}, "Nothing ran in this profile"),
      p({}, "No kernel was launched inside its with statement. Put the step that you want to see into it.")));
    return;
  }
  page.replaceChildren(...[head(), tiles(), phaseBars(), timeline(), figuresTable(), treemap(), roofline()].filter(Boolean));
  showTable();
  draw();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (width === window.innerWidth) return;
    width = window.innerWidth;
    requestAnimationFrame(draw);
  });
}

start();
