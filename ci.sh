#!/usr/bin/env bash
# Everything that is checked, locally and in CI. Without a verb: what there is.
set -euo pipefail
cd "$(dirname "$0")"

readonly SKIP=77 # exit code of a verb that cannot run here
readonly MAX_LINES=600
readonly TARGET=${CARGO_TARGET_DIR:-target}

help() {
    cat <<'EOF'
./ci.sh VERB

  all         everything below that is possible here; says what is not
  setup       is there what a bare Debian needs? With --install or CI=true, as root: installs it
  fmt         formatting
  lint        clippy, warnings are errors
  docs        rustdoc, warnings are errors
  structure   the boundaries that ARCHITECTURE.md promises
  test        tests that need no privilege, and examples in the documentation
  loom        every interleaving of what threads share in pagefrag
  privileged  tests that need root: they make namespaces, devices and BPF programs
  rootless    a measurement as an ordinary user
  smoke       the main job, short: every packet accounted for, nothing left behind
  deny        licences and sources of dependencies, where cargo-deny is installed
  fuzz        captures, the packet language and the device under test with random bytes, FUZZ_SECONDS (20) each,
              where cargo-fuzz is installed
  bench       the senders beside trafgen (root; not part of all)
EOF
}

say() { printf '%s\n' "$*"; }
fail() { say "FAILED: $*" >&2; exit 1; }
cannot() { say "SKIPPED: $*" >&2; exit "$SKIP"; }
is_root() { [ "$(id -u)" = 0 ]; }
in_ci() { [ "${CI:-}" = true ]; }

verb_all() {
    local verb code log started unsteady failed=0 passed=0 skipped='' broken='' named=''
    log=$(mktemp)
    # shellcheck disable=SC2064
    trap "rm -f '$log'" EXIT
    for verb in setup fmt lint docs structure test loom privileged rootless smoke fuzz deny; do
        say "== $verb"
        started=$SECONDS code=0
        "./${0##*/}" "$verb" 2>&1 </dev/null | tee "$log" || code=$?
        say "== $verb took $((SECONDS - started)) s"
        passed=$((passed + $(count_tests passed "$log")))
        [ $code = 0 ] || failed=$((failed + $(count_tests failed "$log")))
        if unsteady=$(grep -m1 '^test result: UNSTEADY' "$log"); then named+=${unsteady#test result: }$'\n'; fi
        case $code in
            0) ;;
            "$SKIP")
                skipped+="  $verb: $(grep -m1 -o 'SKIPPED: .*' "$log" | cut -d' ' -f2-)"$'\n'
                if in_ci && [ "$verb" = privileged ]; then broken+=" $verb" failed=$((failed + 1)); fi
                ;;
            *)
                broken+=" $verb"
                named+=$(name_failures "$log")$'\n'
                # What failed before a test could (a build, a check) counts as one.
                [ "$(count_tests failed "$log")" -gt 0 ] || failed=$((failed + 1))
                ;;
        esac
    done
    say
    if [ -n "$skipped" ]; then printf 'not possible here:\n%s' "$skipped"; fi
    if [ -n "$named" ]; then printf '%s' "$named"; fi
    if [ -n "$broken" ]; then say "not in order:$broken"; fi
    say "$passed passed, $failed failed"
    [ -z "$broken" ]
}

# Which tests failed, and where each of them gave up: what is looked for first, and a long log hides.
name_failures() { # LOG
    { grep -A 3 -E "^test .* FAILED$|^thread .* panicked at |^error(\[|:)|^FAILED: " "$1" || true; } | cut -c 1-300 | tail -n 40
}

# The numbers of cargo's closing lines, added up.
count_tests() { # passed|failed LOG
    { grep -oE "^test result: .*" "$2" || true; } | { grep -oE "[0-9]+ $1" || true; } | awk '{n += $1} END {print n + 0}'
}

verb_setup() {
    local install=no missing=()
    if [ "${1:-}" = --install ] || in_ci; then install=yes; fi
    if ! can_link; then missing+=(gcc libc6-dev); fi
    if [ ${#missing[@]} -gt 0 ]; then
        if [ $install = yes ] && is_root && command -v apt-get >/dev/null; then
            DEBIAN_FRONTEND=noninteractive apt-get update -q
            DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
            can_link || fail "no C program can be linked, although ${missing[*]} are installed"
        else
            fail "a C linker is missing; on Debian: apt-get install ${missing[*]}"
        fi
    fi
    if in_ci && is_root; then install_peers; fi
    command -v cargo >/dev/null || fail "cargo is not in PATH; a Rust toolchain of $(wanted_rust) or later is needed (rustup)"
    rust_is_new_enough || fail "rustc is $(rustc --version | cut -d' ' -f2), $(wanted_rust) is needed: rustup update stable"
    if [ $install = yes ] && command -v rustup >/dev/null && ! has_components; then
        rustup component add clippy rustfmt
    fi
    say "$(rustc --version), $(gcc --version | head -n 1)"
    has_components || say "clippy or rustfmt is missing, so fmt and lint cannot run: rustup component add clippy rustfmt"
    command -v trafgen >/dev/null || say "trafgen is missing (benchmarks and one test compare with it): apt-get install netsniff-ng"
    command -v tshark >/dev/null || say "tshark is missing (some tests compare with it): apt-get install tshark"
    command -v iperf3 >/dev/null || say "iperf3 is missing (some tests talk to it): apt-get install iperf3"
    cargo fuzz --version >/dev/null 2>&1 || say "cargo-fuzz is missing (only fuzz needs it): cargo install --locked cargo-fuzz"
}

# What some tests compare with or need, and skip aloud where it is missing.
install_peers() {
    local missing=() program
    for program in g++ trafgen tshark iperf3; do command -v "$program" >/dev/null || missing+=("$program"); done
    if [ ${#missing[@]} -gt 0 ] && command -v apt-get >/dev/null; then
        { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends g++ netsniff-ng tshark iperf3; } ||
            say "could not install all of ${missing[*]}: what needs them is skipped"
    fi
    cargo fuzz --version >/dev/null 2>&1 || cargo install --quiet --locked cargo-fuzz ||
        say "could not install cargo-fuzz: fuzzing is skipped"
}

can_link() {
    local folder code=0
    folder=$(mktemp -d)
    say 'int main(void) { return 0; }' >"$folder/a.c"
    cc -o "$folder/a" "$folder/a.c" 2>/dev/null || code=1
    rm -r "$folder"
    return $code
}
has_components() { cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1; }
wanted_rust() { sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml; }
rust_is_new_enough() {
    local wanted have
    wanted=$(wanted_rust) have=$(rustc --version | cut -d' ' -f2)
    [ "$(printf '%s\n%s\n' "$wanted" "${have%%-*}" | sort -V | head -n 1)" = "$wanted" ]
}

verb_fmt() {
    cargo fmt --version >/dev/null 2>&1 || cannot "rustfmt is missing: rustup component add rustfmt"
    cargo fmt --all --check || fail "run cargo fmt --all"
}

verb_lint() {
    cargo clippy --version >/dev/null 2>&1 || cannot "clippy is missing: rustup component add clippy"
    cargo clippy --workspace --all-targets --locked -- -D warnings
}

verb_docs() {
    RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked
}

verb_structure() {
    local broken=0
    check_dependencies || broken=1
    forbid 'printing outside the reports of perpacket' '\b(e?print(ln)?|dbg)!' \
        'crates/perpacket/src/report/|crates/[a-z]+/examples/' || broken=1
    forbid 'standard output or error outside the reports' '\b(stdout|stderr)\(\)' \
        'crates/perpacket/src/(report/|progress\.rs)|crates/linux/src/privilege\.rs|bench/src/|crates/[a-z]+/examples/' || broken=1
    forbid 'JSON outside of records, control protocols, perpacket and the journal of lab' '\bserde_json\b' \
        'crates/measure/src/(record/|slice\.rs)|crates/perpacket/src/|crates/lab/src/journal/|crates/stream/src/(own|iperf3)/' || broken=1
    forbid 'unsafe outside of linux and pagefrag' '\bunsafe\b' 'crates/(linux|pagefrag)/' || broken=1
    forbid 'clocks, files or threads in a pure crate' '\b(Instant|SystemTime|std::(time|fs|thread|net::(Tcp|Udp)))\b' \
        'crates/(linux|lab|traffic|datapath|stream|perpacket)/|bench/' || broken=1
    forbid 'statistics inside the reports' \
        'measure::(calibrate|cluster|foil|holm|marginal|order|paired|sequential|sign|warmup)|\b(median|robust_sd|hodges_lehmann|quantile)\(' \
        'crates/(measure|linux|lab|stream|traffic|template|ebpf)/|crates/perpacket/src/([a-z]+\.rs|alloc/|commands/|flows/|pairs/|rig/|paths/|search/|streams/)|bench/' || broken=1
    check_lengths || broken=1
    [ $broken = 0 ] && say 'the structure is as ARCHITECTURE.md says'
}

# Direct dependencies among our own crates, as in the map of ARCHITECTURE.md.
check_dependencies() {
    local crate allowed used name code=0
    for crate in crates/*/; do
        crate=$(basename "$crate")
        case $crate in
            ebpf | measure | pagefrag) allowed='' ;;
            linux) allowed='pagefrag' ;;
            datapath) allowed='linux pagefrag' ;;
            template) allowed='ebpf' ;;
            stream) allowed='linux measure' ;;
            traffic) allowed='ebpf linux measure' ;;
            lab) allowed='linux' ;;
            perpacket) allowed='datapath ebpf lab linux measure pagefrag stream template traffic' ;;
            *) say "crates/$crate is not in the map: add it to ARCHITECTURE.md and ci.sh"; code=1; continue ;;
        esac
        used=$(cargo tree --locked --package "$crate" --depth 1 --edges normal,build --prefix none | tail -n +2 | cut -d' ' -f1) || return 1
        for name in $used; do
            if [ -d "crates/$name" ] && ! grep -qw "$name" <<<"$allowed"; then
                say "crate $crate depends on $name, which the map does not allow"
                code=1
            fi
        done
    done
    return $code
}

# Lines of code (no comments, no tests at the end of a file) with a pattern, outside of the paths that may have it.
forbid() { # WHAT PATTERN ALLOWED
    local file found code=0
    while read -r file; do
        found=$(awk '/^#\[cfg\(test\)\]$/ {getline; if ($0 !~ /^use|^fn/) exit} !/^[ \t]*\/\// {sub(/[ \t]\/\/ .*/, ""); print FILENAME ":" FNR ": " $0}' "$file" |
            grep -E "$2" | grep -vE '(deny|forbid)\(unsafe_code\)' || true)
        if [ -n "$found" ]; then
            printf '%s:\n%s\n' "$1" "$found"
            code=1
        fi
    done < <(find crates bench -name '*.rs' -path '*/src/*' | grep -vE "^($3)" | sort)
    return $code
}

check_lengths() {
    local long
    long=$(find crates bench -name '*.rs' -exec wc -l {} + | awk -v max=$MAX_LINES '$2 != "total" && $1 > max')
    if [ -n "$long" ]; then
        printf 'longer than %s lines:\n%s\n' $MAX_LINES "$long"
        return 1
    fi
}

verb_test() {
    local targets=() name log code=0
    while read -r name; do targets+=(--test "$name"); done < <(test_files '!' -name 'privileged_*')
    log=$(mktemp)
    # shellcheck disable=SC2064
    trap "rm -f '$log'" EXIT
    run_tests | tee "$log" || once_more "$log" run_tests || code=1
    cargo test --workspace --locked --no-fail-fast --doc || code=1
    [ $code = 0 ] || fail "tests"
}

run_tests() { # [ARGUMENT...] of the test programs, with the caller's targets
    cargo test --workspace --locked --no-fail-fast --lib --bins "${targets[@]}" -- "$@"
}

# In a folder of its own, as its flag would make everything else be built anew.
verb_loom() {
    CARGO_TARGET_DIR=$TARGET/loom RUSTFLAGS='--cfg loom' cargo test --locked --package pagefrag --lib
}

verb_privileged() {
    is_root || cannot "privileged tests need root: sudo ./ci.sh privileged"
    local targets=() name log wanted passed
    while read -r name; do targets+=(--test "$name"); done < <(test_files -name 'privileged_*')
    wanted=$(cat crates/*/tests/privileged_*.rs | grep -cE '^[ \t]*#\[test\]')
    log=$(mktemp)
    # shellcheck disable=SC2064
    trap "rm -f '$log'" EXIT
    run_privileged | tee "$log" || once_more "$log" run_privileged || fail "privileged tests"
    passed=$(count_tests passed "$log")
    [ "$passed" -ge "$wanted" ] || fail "$passed privileged tests ran, and there are $wanted"
    say "all $wanted privileged tests ran"
}

run_privileged() { # [ARGUMENT...] of the test programs, with the caller's targets
    PERPACKET_REQUIRE_PRIVILEGED=1 cargo test --workspace --locked --no-fail-fast "${targets[@]}" -- --test-threads=1 "$@"
}

# A machine that other guests share can be still for a second at any moment, and many tests send at rates or talk to other
# programs. What failed gets one more try, and is named for it: a test that cannot pass fails here too.
once_more() { # LOG RUNNER
    local unsteady=()
    mapfile -t unsteady < <(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$1" | sort -u)
    # None: it was not a test that failed, but a build.
    [ ${#unsteady[@]} -ge 1 ] && [ ${#unsteady[@]} -le 3 ] || return 1
    name_failures "$1"
    say "failed, and gets one more try: ${unsteady[*]}"
    "$2" --exact "${unsteady[@]}" >"$1.again" || { cat "$1.again"; rm -f "$1.again"; return 1; }
    rm -f "$1.again"
    say "test result: UNSTEADY. ${#unsteady[@]} passed at the second try only: ${unsteady[*]}" | tee -a "$1"
}

test_files() { find crates/*/tests -maxdepth 1 -name '*.rs' "$@" -exec basename {} .rs \; | sort -u; }

verb_rootless() {
    local folder code=0
    cargo build --locked --package perpacket
    folder=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$folder'" EXIT
    chmod 755 "$folder"
    install -m 755 "$TARGET/debug/perpacket" "$folder/perpacket"
    as_nobody "$folder/perpacket" path raw-drop --time 2s --frame 64 --no-save --json - \
        >"$folder/record.json" 2>"$folder/messages" </dev/null || code=$?
    if [ $code = 2 ] && grep -q 'user namespace' "$folder/messages"; then
        cannot "user namespaces are not allowed here: $(tail -n 1 "$folder/messages")"
    fi
    cat "$folder/messages"
    [ $code = 0 ] || fail "the measurement as an ordinary user ended with $code"
    grep -oE '"backend":"(mmsg|tx-ring)"' "$folder/record.json" | head -n 1 ||
        fail "the record does not name mmsg or tx-ring"
}

# As an ordinary user: root becomes the highest 16-bit user but one, which owns nothing.
as_nobody() {
    if is_root; then
        (cd / && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@")
    else
        "$@"
    fi
}

verb_smoke() {
    is_root || cannot "the main job with all its paths needs root; see rootless"
    local before after deadline=$((SECONDS + 20)) code=0
    cargo build --locked --release --package perpacket
    before=$(left_behind)
    "$TARGET/release/perpacket" path --time 8s --no-save </dev/null || code=$?
    [ $code = 0 ] || fail "the main job ended with $code"
    # The kernel removes namespaces some time after their last user.
    while after=$(comm -13 <(say "$before") <(left_behind)); [ -n "$after" ]; do
        [ $SECONDS -lt $deadline ] || fail "left behind:"$'\n'"$after"
        sleep 0.2
    done
    say "nothing is left behind"
}

# What a run could leave on the host: named namespaces, links, pinned BPF objects, loans, a changed setting (while
# another run has borrowed it, its value says nothing).
left_behind() {
    {
        ls /run/netns /sys/class/net 2>/dev/null || true
        find /sys/fs/bpf -mindepth 1 2>/dev/null || true
        find /run/perpacket \( -name originals.json -o -path '*/holders/*' \) 2>/dev/null || true
        if [ ! -e /run/perpacket/originals.json ]; then grep -H . /sys/kernel/rcu_expedited 2>/dev/null || true; fi
    } | sort
}

verb_deny() {
    cargo deny --version >/dev/null 2>&1 || cannot "cargo-deny is not installed: cargo install cargo-deny --locked"
    cargo deny --locked check licenses bans sources
}

verb_fuzz() {
    cargo fuzz --version >/dev/null 2>&1 || cannot "cargo-fuzz is not installed: cargo install cargo-fuzz --locked"
    command -v g++ >/dev/null || cannot "g++ is missing, which libFuzzer is built with: apt-get install g++"
    local target seeds code=0
    for target in capture parser emit datapath; do
        case $target in
            capture | datapath) seeds=fuzz/seeds/$target ;;
            *) seeds=crates/template/tests/corpus ;;
        esac
        mkdir -p "fuzz/corpus/$target"
        # The sanitizer needs flags of nightly.
        RUSTC_BOOTSTRAP=1 cargo fuzz run "$target" "fuzz/corpus/$target" "$seeds" -- \
            -max_total_time="${FUZZ_SECONDS:-20}" -timeout=5 -rss_limit_mb=1024 -print_final_stats=1 || code=1
    done
    [ $code = 0 ] || fail "fuzzing found something: the input is under fuzz/artifacts"
}

verb_bench() {
    shift
    exec bench/backends "$@"
}

verb=${1:-help}
if [ "$verb" != help ] && declare -F "verb_$verb" >/dev/null; then
    if [ "$verb" = setup ]; then verb_setup "${2:-}"; elif [ "$verb" = bench ]; then verb_bench "$@"; else "verb_$verb"; fi
else
    help
    case $verb in help | -h | --help) ;; *) say "no verb is called $verb" >&2; exit 2 ;; esac
fi
