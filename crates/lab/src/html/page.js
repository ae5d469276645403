(function () {
  var root = document.documentElement, button = document.getElementById("theme");
  button.onclick = function () {
    var dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  };
  // A click on a column's head sorts by it.
  document.querySelectorAll("th").forEach(function (th) {
    th.onclick = function () {
      var body = th.closest("table").tBodies[0], i = th.cellIndex, up = th.dataset.up !== "1";
      th.dataset.up = up ? "1" : "";
      var value = function (row) {
        var text = row.cells[i].textContent, n = parseFloat(text.replace(/,/g, ""));
        if (isNaN(n)) return text;
        return n * (/ s$/.test(text) ? 1e6 : / ms$/.test(text) ? 1e3 : / GB$/.test(text) ? 1e9 : / MB$/.test(text) ? 1e6 : / KB$/.test(text) ? 1e3 : 1);
      };
      Array.from(body.rows).sort(function (a, b) {
        var x = value(a), y = value(b), c = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return up ? c : -c;
      }).forEach(function (row) { body.appendChild(row); });
    };
  });
})();
