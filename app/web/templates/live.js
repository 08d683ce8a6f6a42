// Follows a session while its page is open. The page is whole without it.
"use strict";
(() => {
  const list = document.getElementById("events");
  const state = document.getElementById("state");
  if (!list || !state || !window.EventSource) return;
  const kept = 500; // as the server has it
  const source = new EventSource(list.dataset.live);
  source.addEventListener("add", (e) => {
    const come = document.createRange().createContextualFragment(e.data);
    const over = list.children.length + come.childElementCount - kept;
    if (over >= list.children.length) return list.replaceChildren(come);
    if (over > 0) {
      const gone = document.createRange();
      gone.setStartBefore(list.firstChild);
      gone.setEndAfter(list.children[over - 1]);
      gone.deleteContents();
    }
    list.append(come);
  });
  source.addEventListener("state", (e) => { state.innerHTML = e.data; });
  source.addEventListener("reload", () => {
    const words = document.querySelector("textarea");
    if (!words || words.value === "") location.replace(location.pathname);
  });
})();
