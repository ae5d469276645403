//! The page in a real browser, where one is installed: it draws, in both themes, at the width of a phone and of a desk, and
//! nothing overflows or is told of as an error.

use super::{Lab, STUDY_B, run};
use crate::fake::Honesty;
use std::path::{Path, PathBuf};

fn browser() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = std::env::split_paths(&path).flat_map(|d| names.map(|n| d.join(n)));
    let found = found.find(|p| p.is_file());
    if found.is_none() {
        eprintln!("skipped: no chromium on this machine");
    }
    found
}

/// Before all scripts of the page: what goes wrong is kept.
const EARS: &str = "<script>var wrong=[];onerror=function(m){wrong.push(String(m))};\
    ['error','warn'].forEach(function(k){var f=console[k];console[k]=function(m){wrong.push(String(m));f.apply(console,arguments)}})</script>";

/// After them: everything is unfolded, and the counts of plots, cut-off and too wide elements are shown
/// in the window's title.
const PROBE: &str = "<script>\
    document.querySelectorAll('details').forEach(function(d){d.open=true});\
    var turns=0;(function look(){\
    var d=document.documentElement,off=[];\
    document.querySelectorAll('main *').forEach(function(e){var b=e.getBoundingClientRect();\
    if(b.width&&b.right>d.clientWidth+1&&!e.closest('.scroll')&&!e.closest('.plot'))off.push(e.tagName+'.'+e.className)});\
    var cut=Array.from(document.querySelectorAll('.scroll')).filter(function(e){return e.scrollWidth>e.clientWidth+1}).length;\
    var plots=Array.from(document.querySelectorAll('.plot'));\
    var drawn=plots.filter(function(p){var c=p.querySelector('canvas');return c&&c.getBoundingClientRect().height>100}).length;\
    if(drawn<plots.length&&turns++<60)return setTimeout(look,100);\
    top.document.title='at '+JSON.stringify({width:innerWidth,wide:d.scrollWidth-d.clientWidth,off:off.slice(0,5),cut:cut,\
    plots:plots.length,drawn:drawn,wrong:wrong,ground:getComputedStyle(document.body).backgroundColor,\
    sentences:document.querySelectorAll('.verdict li').length})})()</script></body>";

/// What the probe says of a page in a frame of this width; scheme 0 is dark, 1 light.
fn probed(browser: &Path, dir: &Path, page: &str, width: u32, scheme: u32) -> serde_json::Value {
    let inside = page
        .replace("</body>", PROBE)
        .replacen("<head>", &format!("<head>{EARS}"), 1);
    let inside = inside.replace('&', "&amp;").replace('"', "&quot;");
    let name = |what: &str| dir.join(format!("{what}{width}-{scheme}"));
    let file = name("probe").with_extension("html");
    // A window is never as narrow as a phone, a frame in it is.
    let frame = format!(
        "<!doctype html><meta name=\"color-scheme\" content=\"light dark\">\
         <iframe style=\"border:0;width:{width}px;height:900px\" srcdoc=\"{inside}\"></iframe>"
    );
    std::fs::write(&file, frame).unwrap();
    let out = std::process::Command::new(browser)
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--dump-dom",
            "--virtual-time-budget=8000",
            "--window-size=1500,1000",
        ])
        .arg(format!("--user-data-dir={}", name("profile").display()))
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&out.stdout).into_owned();
    let title = dom.split("<title>at ").nth(1);
    let title = title.and_then(|t| t.split("</title>").next());
    let said = title.unwrap_or_else(|| panic!("no page: {dom}"));
    serde_json::from_str(
        &said
            .replace("&amp;", "&")
            .replace("&lt;", "<")
            .replace("&gt;", ">"),
    )
    .unwrap()
}

fn opens(browser: &Path, dir: &Path, page: &str) {
    for (width, scheme, ground) in [(390, 1, "rgb(247, 247, 245)"), (1400, 0, "rgb(20, 23, 26)")] {
        let said = probed(browser, dir, page, width, scheme);
        assert_eq!(said["width"], width, "{said}");
        assert_eq!(said["wide"], 0, "scrolls sideways: {said}");
        assert_eq!(said["off"], serde_json::json!([]), "stands out: {said}");
        assert_eq!(said["wrong"], serde_json::json!([]), "console: {said}");
        assert_eq!(said["plots"], said["drawn"], "not drawn: {said}");
        assert_eq!(said["cut"], 0, "a table is cut off: {said}");
        assert_eq!(said["ground"], ground, "{said}");
        assert!(said["sentences"].as_u64() > Some(0), "no verdict: {said}");
    }
}

#[test]
fn the_page_of_one_target_opens_in_a_browser() {
    let Some(browser) = browser() else { return };
    let lab = Lab::new(Honesty::Honest);
    assert!(lab.run(&STUDY_B));
    let page = std::fs::read_to_string(lab.out().with_extension("html")).unwrap();
    opens(&browser, lab.dir.path(), &page);
}

/// Two targets with long names, a mixed workload and open loops: the widest that there is.
#[test]
fn the_page_of_two_targets_opens_in_a_browser() {
    let Some(browser) = browser() else { return };
    let lab = Lab::new(Honesty::Honest);
    let other = Lab::new(Honesty::Honest);
    let args = ["short", "--records", "200", "--connections", "1,2,4"];
    let more = ["--duration", "60ms", "--repeat", "2", "--url", &other.url];
    assert!(lab.run(&[&args[..], &more].concat()));
    let report = lab.report();
    // A load, three workloads at three numbers of connections, response times at three loads of two, on both.
    assert_eq!(report.steps.len(), 2 * (1 + 9 + 6));
    assert!(report.steps.iter().all(|s| s.repeats.len() == 2));
    let page = std::fs::read_to_string(lab.out().with_extension("html")).unwrap();
    opens(&browser, lab.dir.path(), &page);
    // Several studies on one page.
    let first = lab.dir.path().join("first.json");
    std::fs::rename(lab.out(), &first).unwrap();
    assert!(lab.run(&STUDY_B));
    let (first, second) = (first.to_str().unwrap(), lab.out());
    assert!(run(&[
        "report",
        first,
        second.to_str().unwrap(),
        "--svg",
        "-"
    ]));
    let page = std::fs::read_to_string(lab.dir.path().join("report.html")).unwrap();
    opens(&browser, lab.dir.path(), &page);
}
