(function () {
  var root = document.documentElement, button = document.getElementById("theme");
  button.onclick = function () {
    var dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  };
  // A click on a column's head sorts by it.
  document.querySelectorAll("thead th").forEach(function (th) {
    th.onclick = function () {
      var i = th.cellIndex, up = th.dataset.up !== "1";
      th.dataset.up = up ? "1" : "";
      var value = function (row) {
        var text = row.cells[i].textContent, n = parseFloat(text.replace(/,/g, ""));
        if (isNaN(n)) return text;
        return n * (/ s$/.test(text) ? 1e6 : / ms$/.test(text) ? 1e3 : / GB$/.test(text) ? 1e9 : / MB$/.test(text) ? 1e6 : / KB$/.test(text) ? 1e3 : 1);
      };
      // A study's rows stay with their study.
      Array.from(th.closest("table").tBodies).forEach(function (body) {
        Array.from(body.rows).filter(function (row) { return row.className !== "study"; }).sort(function (a, b) {
          var x = value(a), y = value(b), c = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
          return up ? c : -c;
        }).forEach(function (row) { body.appendChild(row); });
      });
    };
  });
})();
