//! Results shown, compared, and as a page in a real browser.

use super::{Lab, STUDY_B, run};
use crate::fake::Honesty;
use std::path::Path;

#[test]
fn replies_are_recorded_and_results_shown() {
    let lab = Lab::new(Honesty::Honest);
    let file = lab.dir.path().join("replies.bson");
    let file = file.to_str().unwrap();
    assert!(run(&[
        "record",
        "--url",
        &lab.url,
        "--records",
        "1k",
        "--out",
        file
    ]));
    let recorded = lab::null::read_recorded(Path::new(file)).unwrap();
    assert_eq!(recorded.len(), 8);
    let first100 = recorded.iter().find(|r| r.operation == "test7").unwrap();
    assert!(first100.message.len() > 100 * 1024);
    assert!(lab::null::Replies::read(Path::new(file), Some("test4")).is_ok());
    assert!(lab::null::Replies::read(Path::new(file), Some("test9")).is_err());

    let args = ["run", "C", "--records", "100", "--operations", "100"];
    assert!(lab.run(&args));
    let out = lab.out();
    let out = out.to_str().unwrap();
    assert!(run(&["show", out]));
    assert!(run(&["diff", out, out]));
    assert!(run(&["list"]));
    assert!(!run(&["show", file]));
    assert!(!run(&["show"]));
    // A result is never taken for the place of its page.
    assert!(!run(&["report", out, "--out", out]));
}

#[test]
fn several_results_are_one_table_and_one_page() {
    let lab = Lab::new(Honesty::Honest);
    assert!(lab.run(&STUDY_B));
    let first = lab.dir.path().join("b.json");
    std::fs::rename(lab.out(), &first).unwrap();
    assert!(lab.run(&["run", "C", "--records", "100", "--operations", "100"]));
    let (first, second) = (first.to_str().unwrap().to_string(), lab.out());
    let second = second.to_str().unwrap();
    assert!(run(&["show", &first, second]));
    assert!(run(&["report", &first, second, "--svg", "-"]));
    let page = std::fs::read_to_string(lab.dir.path().join("report.html")).unwrap();
    assert!(page.contains("All studies, all targets"));
    for study in ["B-keys", "run C"] {
        let head = format!(">{study}</a></th>");
        assert!(page.contains(&head), "{study}");
    }
    assert!(page.contains("<td>insert, key given @1</td>"));
    // What a plot is called is said once.
    let ids: Vec<&str> = page
        .split(" id=\"")
        .skip(1)
        .filter_map(|p| p.split('"').next())
        .collect();
    let mut once = ids.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(ids.len(), once.len(), "{ids:?}");
}

/// The page in a real browser, where one is installed: it draws, in both themes, and no width makes it scroll sideways.
#[test]
fn the_page_opens_in_a_browser() {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).flat_map(|d| names.map(|n| d.join(n)));
    let Some(browser) = found.into_iter().find(|p| p.is_file()) else {
        eprintln!("skipped: no chromium on this machine");
        return;
    };
    let lab = Lab::new(Honesty::Honest);
    assert!(lab.run(&STUDY_B));
    let page = std::fs::read_to_string(lab.out().with_extension("html"));
    let page = page.unwrap_or_else(|_| {
        let out = lab.out();
        assert!(run(&["report", out.to_str().unwrap(), "--svg", "-"]));
        std::fs::read_to_string(out.with_extension("html")).unwrap()
    });
    let probe = "<script>var d=document.documentElement,s=Array.from(document.querySelectorAll('svg')).find(function(x){return x.getBoundingClientRect().height>0});top.document.title='at '+innerWidth+' wide '+(d.scrollWidth-d.clientWidth)+' tall '+Math.round(s.getBoundingClientRect().height)+' dark '+getComputedStyle(document.body).backgroundColor</script></body>";
    let inside = page.replace("</body>", probe);
    let inside = inside.replace('&', "&amp;").replace('"', "&quot;");
    let title = |width: u32, scheme: u32| {
        let name = |what: &str| lab.dir.path().join(format!("{what}{width}{scheme}"));
        // A window is never as narrow as a phone, a frame in it is.
        let file = name("probe").with_extension("html");
        let frame = format!(
            "<!doctype html><meta name=\"color-scheme\" content=\"light dark\">\
             <iframe style=\"border:0;width:{width}px;height:900px\" srcdoc=\"{inside}\"></iframe>"
        );
        std::fs::write(&file, frame).unwrap();
        let out = std::process::Command::new(&browser)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--dump-dom",
                "--window-size=1400,1000",
            ])
            .arg(format!("--user-data-dir={}", name("profile").display()))
            .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
            .arg(format!("file://{}", file.display()))
            .output()
            .unwrap();
        let dom = String::from_utf8_lossy(&out.stdout).into_owned();
        let title = dom.split("<title>at ").nth(1);
        let title = title.and_then(|t| t.split("</title>").next());
        title
            .unwrap_or_else(|| panic!("no page: {dom}"))
            .to_string()
    };
    for width in [390, 1280] {
        for (scheme, ground) in [(1, "rgb(247, 247, 245)"), (0, "rgb(20, 23, 26)")] {
            let t = title(width, scheme);
            let drawn = t.starts_with(&format!("{width} wide 0 tall ")) && !t.contains("tall 0 ");
            assert!(drawn && t.ends_with(ground), "{t}");
        }
    }
}
