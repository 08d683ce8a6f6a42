// Follows a session while its page is open. The page is whole without it.
"use strict";
(() => {
  const list = document.getElementById("events");
  const state = document.getElementById("state");
  if (!list || !state || !window.EventSource) return;
  const kept = 500; // as the server has it
  const source = new EventSource(list.dataset.live);
  source.addEventListener("add", (e) => {
    list.insertAdjacentHTML("beforeend", e.data);
    while (list.children.length > kept) list.firstElementChild.remove();
  });
  source.addEventListener("state", (e) => { state.innerHTML = e.data; });
  source.addEventListener("reload", () => {
    const words = document.querySelector("textarea");
    if (!words || words.value === "") location.replace(location.pathname);
  });
})();
