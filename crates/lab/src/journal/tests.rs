//! The journal over ordinary files in a directory of each test's own.

use std::fs;

use proptest::prelude::*;

use super::*;

/// A directory that is deleted at the end, with a setting in it.
struct Place {
    root: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("perpacket-journal-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("setting"), "0\n").unwrap();
        Self { root }
    }

    fn setting(&self) -> PathBuf {
        self.root.join("setting")
    }

    fn value(&self) -> String {
        fs::read_to_string(self.setting()).unwrap()
    }

    fn settings(&self) -> HostSettings {
        HostSettings::open(self.root.join("run")).unwrap()
    }

    fn originals(&self) -> PathBuf {
        self.root.join("run/originals.json")
    }

    fn holders(&self) -> usize {
        fs::read_dir(self.root.join("run/holders")).unwrap().count()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn what_somebody_else_sets_meanwhile_is_left_and_told() {
    let place = Place::new("changed");
    let settings = place.settings();
    let guard = settings.hold(place.setting(), "1").unwrap();
    fs::write(place.setting(), "7\n").unwrap();
    guard.release().unwrap();
    assert_eq!(place.value(), "7\n", "theirs");
    assert!(!place.originals().exists(), "and forgotten");
    let [changed] = &settings.take_changed()[..] else { panic!("it is told") };
    let found = (changed.applied.as_str(), changed.now.as_str(), changed.before.as_str());
    assert_eq!(found, ("1", "7", "0"));
    assert!(settings.take_changed().is_empty(), "once");

    // Back to what it was before, or as the run had it: nothing to tell.
    for value in ["7\n", "1\n"] {
        let guard = settings.hold(place.setting(), "1").unwrap();
        fs::write(place.setting(), value).unwrap();
        guard.release().unwrap();
        assert_eq!((place.value().as_str(), settings.take_changed().len()), ("7\n", 0));
    }

    // While another run holds it, it is not given back at all.
    let (first, other) = (settings.hold(place.setting(), "1").unwrap(), place.settings());
    let second = other.hold(place.setting(), "1").unwrap();
    fs::write(place.setting(), "9\n").unwrap();
    first.release().unwrap();
    assert_eq!((place.value().as_str(), settings.take_changed().len()), ("9\n", 0));
    second.release().unwrap();
    assert_eq!((place.value().as_str(), other.take_changed().len()), ("9\n", 1));
}

#[test]
fn what_others_hold_and_what_is_borrowed_can_be_seen() {
    let place = Place::new("seen");
    let (settings, other) = (place.settings(), place.settings());
    assert!(look::look_at(&place.root.join("nowhere")).settings.is_empty());
    let guard = settings.hold(place.setting(), "1").unwrap();
    assert!(settings.held_by_others().unwrap().is_empty(), "one's own");
    let [held] = &other.held_by_others().unwrap()[..] else { panic!("one") };
    assert_eq!((held.path.clone(), held.value.as_str()), (place.setting(), "1"));
    let seen = look::look_at(&place.root.join("run"));
    assert_eq!((seen.settings.clone(), seen.is_left_behind()), (vec![(place.setting(), "0".into())], false));
    guard.release().unwrap();
    drop(settings);
    assert!(look::look_at(&place.root.join("run")).settings.is_empty());
    // A holder that is no more.
    fs::write(place.root.join("run/holders/4294967295-1"), "").unwrap();
    let originals = settings_file(&place);
    fs::write(place.originals(), originals).unwrap();
    assert!(look::look_at(&place.root.join("run")).is_left_behind());
}

/// A file of originals of this boot, with the place's setting in it.
fn settings_file(place: &Place) -> String {
    let boot = linux::sysctl::read_opt("kernel.random.boot_id").unwrap_or_default();
    let path = place.setting();
    serde_json::json!({"version": 1, "boot": boot, "settings": [{"path": path, "value": "0\n"}]}).to_string()
}

#[test]
fn a_setting_is_borrowed_and_given_back() {
    let place = Place::new("borrow");
    let settings = place.settings();
    let guard = settings.hold(place.setting(), "1").unwrap();
    assert_eq!(place.value(), "1");
    assert!(place.originals().exists());
    guard.release().unwrap();
    assert_eq!(place.value(), "0\n", "to the byte");
    assert!(!place.originals().exists());
    drop(settings);
    assert_eq!(place.holders(), 0);
}

#[test]
fn the_last_of_several_gives_it_back() {
    let place = Place::new("several");
    // Two journals over one directory are what two processes are.
    let (a, b) = (place.settings(), place.settings());
    let first = a.hold(place.setting(), "1").unwrap();
    let second = b.hold(place.setting(), "1").unwrap();
    let third = b.hold(place.setting(), "1").unwrap();
    drop(first);
    assert_eq!(place.value(), "1");
    drop(second);
    assert_eq!(place.value(), "1");
    drop(third);
    assert_eq!(place.value(), "0\n");
}

#[test]
fn another_value_is_refused_while_it_is_held() {
    let place = Place::new("conflict");
    let (a, b) = (place.settings(), place.settings());
    let guard = a.hold(place.setting(), "1").unwrap();
    for settings in [&a, &b] {
        let error = settings.hold(place.setting(), "2").unwrap_err();
        assert!(matches!(&error, JournalError::Conflict { held, .. } if held == "1"), "{error}");
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    }
    assert_eq!(place.value(), "1");
    drop(guard);
    drop(b.hold(place.setting(), "2").unwrap());
    assert_eq!(place.value(), "0\n");
}

#[test]
fn a_setting_that_cannot_be_written_is_not_held() {
    let place = Place::new("refused");
    let settings = place.settings();
    let missing = place.root.join("missing");
    let error = settings.hold(&missing, "1").unwrap_err();
    assert!(error.to_string().contains("missing"), "{error}");
    assert!(!missing.exists() && !place.originals().exists());
    // Readable, but never writable: not even for root.
    let error = settings.hold("/proc/version", "1").unwrap_err();
    assert!(matches!(error, JournalError::File { doing: "write setting", .. }), "{error}");
    assert!(!place.originals().exists(), "what was not changed is not put back for ever");
    drop(settings.hold(place.setting(), "1").unwrap());
    assert_eq!(place.value(), "0\n");
}

#[test]
fn what_the_dead_left_is_put_back() {
    let place = Place::new("dead");
    let dead = place.settings();
    std::mem::forget(dead.hold(place.setting(), "1").unwrap());
    // The kernel closes a killed process's files, and runs none of its code.
    let holder = dead.shared.holder.lock().unwrap().take().unwrap();
    let path = fs::read_dir(place.root.join("run/holders")).unwrap().next().unwrap().unwrap().path();
    let text = fs::read(&path).unwrap();
    drop(holder);
    fs::write(&path, text).unwrap();

    let settings = place.settings();
    let report = settings.clean().unwrap();
    assert_eq!(report.restored, [Restored { path: place.setting(), value: "0".to_owned() }]);
    assert_eq!((report.dead_holders, report.failed.len(), place.holders()), (1, 0, 0));
    assert_eq!(place.value(), "0\n");
    assert!(settings.clean().unwrap().restored.is_empty(), "once is enough");
}

#[test]
fn cleaning_leaves_the_living_alone() {
    let place = Place::new("living");
    let settings = place.settings();
    let guard = settings.hold(place.setting(), "1").unwrap();
    let report = place.settings().clean().unwrap();
    assert!(report.restored.is_empty() && report.dead_holders == 0);
    assert_eq!(place.value(), "1");
    drop(guard);
}

#[test]
fn a_setting_that_is_gone_is_forgotten() {
    let place = Place::new("gone");
    let settings = place.settings();
    let guard = settings.hold(place.setting(), "1").unwrap();
    fs::remove_file(place.setting()).unwrap();
    guard.release().unwrap();
    assert!(!place.originals().exists() && !place.setting().exists());
}

#[test]
fn a_foreign_journal_is_refused_and_kept() {
    let place = Place::new("foreign");
    let settings = place.settings();
    for text in ["", "{}", "{\"version\":2,\"boot\":\"\",\"settings\":[]}"] {
        fs::write(place.originals(), text).unwrap();
        let error = settings.hold(place.setting(), "1").unwrap_err();
        assert!(matches!(error, JournalError::Unreadable { .. }), "{error}");
        assert!(settings.clean().is_err());
        assert_eq!(
            (place.value().as_str(), fs::read_to_string(place.originals()).unwrap().as_str()),
            ("0\n", text)
        );
    }
}

#[test]
fn the_originals_of_another_boot_are_no_longer_true() {
    let text = r#"{"version":1,"boot":"b","settings":[{"path":"/sys/x","value":"0\n"}]}"#;
    let expected = Originals::from([(PathBuf::from("/sys/x"), "0\n".to_owned())]);
    assert_eq!(files::parse_originals(text, "b"), Ok(expected));
    assert_eq!(files::parse_originals(text, "another"), Ok(Originals::new()));
}

#[test]
fn nobody_else_can_open_the_lock() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new("private");
    let settings = place.settings();
    let _guard = settings.hold(place.setting(), "1").unwrap();
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(place.root.join("run/settings.lock")), 0o600);
    for holder in fs::read_dir(place.root.join("run/holders")).unwrap() {
        assert_eq!(mode(holder.unwrap().path()), 0o600);
    }
    // What was there before is no secret, as long as nobody else writes it.
    for other in ["run", "run/holders", "run/originals.json"] {
        assert_eq!(mode(place.root.join(other)) & 0o022, 0, "{other}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC{0,200}") {
        let _ = files::parse_originals(&text, "");
    }
}
