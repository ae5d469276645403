(function () {
  var root = document.documentElement, button = document.getElementById("theme");
  button.onclick = function () {
    var dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    window.repaint();
  };
  // A link to what is folded opens it.
  var unfold = function () {
    var at = document.getElementById(location.hash.slice(1));
    for (var e = at; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    if (at) at.scrollIntoView();
  };
  window.addEventListener("hashchange", unfold);
  unfold();
  var value = function (row, i) {
    var text = row.cells[i].textContent, n = parseFloat(text.replace(/,/g, ""));
    if (isNaN(n)) return text;
    return n * (/ s$/.test(text) ? 1e6 : / ms$/.test(text) ? 1e3 : / GB$/.test(text) ? 1e9 : / MB$/.test(text) ? 1e6 : / KB$/.test(text) ? 1e3 : 1);
  };
  // A study's rows stay with their study.
  var sort = function (table, i, up) {
    Array.from(table.tHead.rows[0].cells).forEach(function (th, n) { th.setAttribute("aria-sort", n !== i ? "none" : up ? "ascending" : "descending"); });
    Array.from(table.tBodies).forEach(function (body) {
      Array.from(body.rows).filter(function (row) { return row.className !== "study"; }).sort(function (a, b) {
        var x = value(a, i), y = value(b, i), c = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return up ? c : -c;
      }).forEach(function (row) { body.appendChild(row); });
    });
  };
  document.querySelectorAll("table").forEach(function (table) {
    var heads = Array.from(table.tHead.rows[0].cells), box = table.closest(".sheet").querySelector(".tools");
    heads.forEach(function (th, i) {
      th.tabIndex = 0;
      th.onclick = function () { sort(table, i, th.getAttribute("aria-sort") !== "ascending"); };
      th.onkeydown = function (e) { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); th.onclick(); } };
    });
    if (!box) return;
    var words = box.querySelector("input"), by = box.querySelector("select"), left = box.querySelector("output");
    // Where the heads are not drawn, on a phone, one chooses from a list.
    heads.forEach(function (th, i) { if (th.textContent) by.add(new Option(th.textContent, i)); });
    by.onchange = function () { if (by.value !== "") sort(table, +by.value, true); };
    words.oninput = function () {
      var all = words.value.toLowerCase().split(/\s+/), shown = 0, rows = 0;
      Array.from(table.tBodies).forEach(function (body) {
        Array.from(body.rows).forEach(function (row) {
          if (row.className === "study") return;
          var text = row.textContent.toLowerCase(), fits = all.every(function (w) { return text.indexOf(w) >= 0; });
          row.hidden = !fits;
          rows += 1;
          shown += fits ? 1 : 0;
        });
      });
      left.textContent = shown === rows ? "" : shown + " of " + rows;
    };
  });
})();
