//! Processes that borrow a setting are killed at random moments; the setting is always what it was.
//!
//! The setting is an ordinary file, so this needs no privilege.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lab::HostSettings;

const CHILD: &str = "PERPACKET_TEST_JOURNAL";
const ORIGINAL: &str = "17\n";
const ROUNDS: u32 = 20;

#[test]
fn a_kill_at_any_moment_leaves_the_original() {
    if let Some(root) = std::env::var_os(CHILD) {
        borrow_for_ever(Path::new(&root));
    }
    let root = std::env::temp_dir().join(format!("perpacket-kill-{}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(&root).unwrap();
    fs::write(root.join("setting"), ORIGINAL).unwrap();
    let mut found_borrowed = 0;
    for round in 0..ROUNDS {
        let mut children = [start(&root), start(&root)];
        wait_until_borrowed(&root, &mut children);
        for child in &mut children {
            busy_wait(Duration::from_micros(random() % 3_000));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        found_borrowed += u32::from(fs::read_to_string(root.join("setting")).unwrap() != ORIGINAL);
        HostSettings::open(root.join("run")).unwrap().clean().unwrap();
        assert_eq!(fs::read_to_string(root.join("setting")).unwrap(), ORIGINAL, "round {round}");
        let left: Vec<PathBuf> =
            fs::read_dir(root.join("run/holders")).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty() && !root.join("run/originals.json").exists(), "round {round}: {left:?}");
    }
    fs::remove_dir_all(&root).unwrap();
    assert!(found_borrowed > 0, "no kill ever hit while the setting was borrowed: nothing was tried");
}

fn start(root: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["a_kill_at_any_moment_leaves_the_original", "--exact"])
        .env(CHILD, root)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Borrows, holds and gives back for as long as it lives; ends itself should nobody kill it.
fn borrow_for_ever(root: &Path) -> ! {
    let settings = HostSettings::open(root.join("run")).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        let guard = settings.hold(root.join("setting"), "1").unwrap();
        busy_wait(Duration::from_micros(random() % 500));
        guard.release().unwrap();
    }
    std::process::exit(0);
}

fn wait_until_borrowed(root: &Path, children: &mut [Child]) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let holders = || fs::read_dir(root.join("run/holders")).map_or(0, Iterator::count);
    while holders() < children.len() {
        for child in children.iter_mut() {
            assert_eq!(child.try_wait().unwrap(), None, "a child ended by itself");
        }
        assert!(Instant::now() < deadline, "the children did not borrow the setting");
        std::thread::yield_now();
    }
}

fn busy_wait(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::yield_now();
    }
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}
