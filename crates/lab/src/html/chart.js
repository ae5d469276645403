(function () {
  var color = function (name) { return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim(); };
  var short = function (v) {
    if (v == null) return "–";
    var a = Math.abs(v), n = v, unit = "";
    if (a >= 1e9) { n = v / 1e9; unit = "G"; } else if (a >= 1e6) { n = v / 1e6; unit = "M"; } else if (a >= 1e4) { n = v / 1e3; unit = "k"; }
    a = Math.abs(n);
    return String(+n.toFixed(a >= 100 || a === 0 ? 0 : a >= 10 ? 1 : a >= 0.1 ? 2 : 3)) + unit;
  };
  // A value as its axis names it: of shares x stands for 1 - 1/x.
  var named = function (v, of) {
    if (v == null) return "–";
    if (!of.shares) return short(v) + of.suffix;
    return (100 - 100 / v).toFixed(Math.min(6, Math.max(0, Math.ceil(Math.log10(v) - 2.0001)))) + "%";
  };
  // Round places on a logarithmic axis: in few decades 1, 2 and 5 of each.
  var decades = function (low, high) {
    var out = [], from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
    for (var d = from; d <= to; d++) (to - from > 3 ? [1] : [1, 2, 5]).forEach(function (m) {
      var v = m * Math.pow(10, d);
      if (v >= low * 0.999 && v <= high * 1.001) out.push(v);
    });
    return out;
  };
  // An axis: its label stands above the plot, or in the legend, where no line crosses it.
  var axis = function (of, more) {
    var a = Object.assign({
      stroke: function () { return color("soft"); }, font: "11px system-ui, sans-serif",
      grid: { stroke: function () { return color("line"); }, width: 1 }, ticks: { show: false },
      values: function (u, all) { return all.map(function (v) { return v == null ? "" : named(v, of); }); }
    }, more);
    if (of.ticks.length || of.log) {
      a.filter = function (u, all) { return all; };
      a.splits = function (u, i, low, high) {
        if (!of.ticks.length) return decades(low, high);
        // Labels that would run into each other are left out.
        var last = -1e9;
        return of.ticks.filter(function (t) {
          if (t < low * 0.999 || t > high * 1.001) return false;
          var at = u.valToPos(t, more.scale), room = more.scale === "x" ? 44 : 18;
          if (Math.abs(at - last) < room) return false;
          last = at;
          return true;
        });
      };
    }
    return a;
  };
  var range = function (of, zero) {
    return function (u, low, high) {
      if (low == null || high == null) return [of.log ? 1 : 0, of.log ? 10 : 1];
      if (of.log) return [low / (zero ? 1.25 : 1.06), high * (zero ? 1.25 : 1.06)];
      // Rates and sizes begin at nothing: half a scale exaggerates.
      if (zero) return [Math.min(0, low), high > 0 ? high * 1.08 : 1];
      return low === high ? [low - 0.5, high + 0.5] : [low, high];
    };
  };
  // What is pointed out, and what the server did beside, over the lines.
  var over = function (d) {
    return function (u) {
      var c = u.ctx, px = devicePixelRatio || 1, box = u.bbox, taken = [];
      c.save();
      c.font = "600 " + 11 * px + "px system-ui, sans-serif";
      c.textAlign = "center";
      c.lineJoin = "round";
      d.marks.forEach(function (m) {
        var x = u.valToPos(m[0], "x", true), y = u.valToPos(m[1], "y", true);
        if (!(x >= box.left - 1 && x <= box.left + box.width + 1)) return;
        c.beginPath(); c.arc(x, y, 4.5 * px, 0, 7); c.fillStyle = color("card"); c.strokeStyle = color("s" + m[2]); c.lineWidth = 2 * px; c.fill(); c.stroke();
        if (!m[3]) return;
        var half = c.measureText(m[3]).width / 2, tx = Math.min(Math.max(x, box.left + half), box.left + box.width - half);
        var ty = y - 10 * px < box.top + 8 * px ? y + 20 * px : y - 10 * px;
        if (taken.some(function (t) { return Math.abs(t[0] - tx) < half * 2 && Math.abs(t[1] - ty) < 13 * px; })) return;
        taken.push([tx, ty]);
        c.lineWidth = 4 * px; c.strokeStyle = color("card"); c.strokeText(m[3], tx, ty); c.fillStyle = color("ink"); c.fillText(m[3], tx, ty);
      });
      d.events.forEach(function (e, row) {
        c.fillStyle = color("s" + (d.series.length + row + 1) % 8);
        e[1].forEach(function (at) {
          var x = u.valToPos(at, "x", true);
          if (x >= box.left && x <= box.left + box.width) c.fillRect(x - 1.5 * px, box.top + box.height - (9 + 9 * row) * px, 3 * px, 7 * px);
        });
      });
      c.restore();
    };
  };
  var draw = function (el, width) {
    var d = el._data || (el._data = JSON.parse(el.querySelector("script").textContent));
    var data = [d.at], series = [{ label: d.x.label, value: function (u, v) { return named(v, d.x); } }], bands = [];
    d.series.forEach(function (s) {
      data.push(s.values);
      series.push({
        label: s.name, stroke: function () { return color("s" + s.color); }, width: s.fine ? 1.2 : 2, dash: s.dashed ? [6, 4] : undefined,
        spanGaps: true, points: { show: s.dots, size: 7, fill: function () { return color("s" + s.color); } },
        value: function (u, v) { return named(v, d.y); }
      });
    });
    d.series.forEach(function (s) {
      if (!s.band) return;
      var hidden = { class: "u-skip", label: "", width: 0, stroke: "transparent", points: { show: false }, spanGaps: true };
      data.push(s.band[1], s.band[0]);
      series.push(hidden, Object.assign({}, hidden));
      bands.push({ series: [series.length - 2, series.length - 1], fill: color("s" + s.color) + "26" });
    });
    var plot = new uPlot({
      width: width, height: width < 420 ? 250 : 300, series: series, bands: bands,
      scales: {
        x: { time: false, distr: d.x.log ? 3 : 1, range: range(d.x, false) },
        y: { distr: d.y.log ? 3 : 1, range: range(d.y, true) }
      },
      axes: [axis(d.x, { scale: "x", size: 30 }), axis(d.y, { scale: "y", size: 58 })],
      cursor: { y: false, points: { size: 7 } },
      hooks: { draw: [over(d)] }
    }, data, el);
    el._plot = plot;
  };
  var charts = Array.from(document.querySelectorAll(".plot"));
  // A folded plot has no width until it is opened.
  var fit = function (el) {
    var width = Math.floor(el.clientWidth);
    if (!width) return;
    if (!el._plot) draw(el, width);
    else if (el._plot.width !== width) el._plot.setSize({ width: width, height: width < 420 ? 250 : 300 });
  };
  // After the layout that is told of, not within it.
  var seen = new ResizeObserver(function (all) {
    requestAnimationFrame(function () { all.forEach(function (e) { fit(e.target); }); });
  });
  charts.forEach(function (el) { seen.observe(el); });
  // Colours are read when a plot is made.
  window.repaint = function () {
    charts.forEach(function (el) {
      if (!el._plot) return;
      var width = el._plot.width;
      el._plot.destroy();
      draw(el, width);
    });
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", window.repaint);
})();
