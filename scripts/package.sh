#!/usr/bin/env bash
# Makes the packages of one commit from one binary, and tries them.
#
#     scripts/package.sh build [--bin FILE] [--told-by FILE] [--out DIR] [KIND…]
#     scripts/package.sh try [--out DIR] [KIND…]                  installs each into a clean root and runs a first query
#
# KIND is tarball deb wheel npm container homebrew helm (without one, all), for macOS tarball wheel npm homebrew.
#
# A binary for another processor (scripts/cross.sh) is run by what PANDO_RUN names, as "qemu-aarch64-static -L /usr/aarch64-linux-gnu",
# for both verbs; its tarball is what can be tried so.
# Where nothing runs it, --told-by names one of the same commit that runs here: man pages, completions and version are its.
# On macOS it wants the GNU tools: brew install bash coreutils gnu-tar gnu-sed, with their gnubin directories first on PATH.
# Without --bin the release binary is built. The binary says which C library it needs: that is in the name of the wheel and in
# the package's dependencies, so a binary made on a new system is not offered to an old one. DIR is target/packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/provision.sh

here=$PWD/packaging
out=${CARGO_TARGET_DIR:-$PWD/target}/packages
bin='' told_by='' kinds=()
verb=${1:-}
[[ $verb == build || $verb == try ]] || die "say build or try; see the head of this file"
shift
while [ $# -gt 0 ]; do
    case $1 in
        --bin) bin=$(realpath "$2"); shift ;;
        --told-by) told_by=$(realpath "$2"); shift ;;
        --out) mkdir -p "$2"; out=$(realpath "$2"); shift ;;
        tarball | deb | wheel | npm | container | homebrew | helm) kinds+=("$1") ;;
        *) die "no such package: $1" ;;
    esac
    shift
done

# ---- the packed content: the program, stripped, and its own help

# The newest version of the C library that the binary asks for.
glibc_of() {
    objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1
}

# The system and the processor that a binary is for.
platform_of() {
    local bytes
    bytes=$(od -An -tx1 -N20 "$1" | tr -d ' \n')
    case $bytes in
        7f454c46*3e00) echo linux x86_64 ;;
        7f454c46*b700) echo linux aarch64 ;;
        cffaedfe07000001*) echo macos x86_64 ;;
        cffaedfe0c000001*) echo macos aarch64 ;;
        *) die "there are no packages for what $1 is for" ;;
    esac
}

# Sets what of the C library and of others a binary for Linux needs: glibc, libraries (Debian's packages besides), wheel_platform.
needs_of_linux() {
    libraries=
    ! objdump -p "$bin" | grep -q 'NEEDED .*libstdc++' || libraries+=", libstdc++6"
    ! objdump -p "$bin" | grep -q 'NEEDED .*libgcc_s' || libraries+=", libgcc-s1"
    glibc=$(glibc_of "$bin")
    [ -n "$glibc" ] || die "$bin does not say which C library it needs"
    wheel_platform=manylinux_${glibc/./_}_$machine
    # The release profile strips by itself; what another processor's binary has is left where there is no tool for it.
    strip "$stage/tree/bin/pando" 2>/dev/null || [ "$machine" != "$(uname -m)" ]
}

# Sets version, system, machine, debian and node (machine for dpkg and npm), node_system, wheel_platform, stage.
prepare() {
    if [ -z "$bin" ]; then
        cargo build --release --locked -p pando
        bin=${CARGO_TARGET_DIR:-$PWD/target}/release/pando
    fi
    local platform
    platform=$(platform_of "$bin")
    read -r system machine <<<"$platform"
    case $machine in
        x86_64) debian=amd64 node=x64 ;;
        aarch64) debian=arm64 node=arm64 ;;
    esac
    stage=$(mktemp -d)
    trap 'rm -rf "$stage"' EXIT
    mkdir -p "$out" "$stage/tree"
    local root=$stage/tree
    install -D -m 0755 "$bin" "$root/bin/pando"
    case $system in
        linux) node_system=linux && needs_of_linux ;;
        # The oldest macOS on Apple's own processors (scripts/cross.sh and the release workflow build for it).
        macos) node_system=darwin wheel_platform=macosx_11_0_${machine/aarch64/arm64} ;;
    esac
    printf '#!/bin/sh\nexec %s "%s" "$@"\n' "${PANDO_RUN:-}" "${told_by:-$bin}" >"$stage/run"
    chmod 0755 "$stage/run"
    version=$("$stage/run" --version | cut -d' ' -f2)
    python3 "$here/documents.py" "$stage/run" "$stage/documents"
    mkdir -p "$root/share/man/man1" "$root/share/bash-completion/completions" "$root/share/zsh/vendor-completions" \
        "$root/share/fish/vendor_completions.d" "$root/share/doc/pando"
    cp "$stage"/documents/man/man1/*.1 "$root/share/man/man1"
    cp "$stage/documents/completions/pando.bash" "$root/share/bash-completion/completions/pando"
    cp "$stage/documents/completions/_pando" "$root/share/zsh/vendor-completions"
    cp "$stage/documents/completions/pando.fish" "$root/share/fish/vendor_completions.d"
    cp LICENSE NOTICES.md README.md COMPAT.md CHANGELOG.md "$root/share/doc/pando"
}

# The time of the commit, so that two runs make the same files.
export SOURCE_DATE_EPOCH
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)

build_tarball() {
    local name=pando-$version-$system-$machine
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        --transform "s,^\.,$name," -C "$stage/tree" . | gzip -n >"$out/$name.tar.gz"
}

build_deb() {
    command -v dpkg-deb >/dev/null || die "please install dpkg"
    local root=$stage/deb
    mkdir -p "$root/DEBIAN" "$root/usr" "$root/etc/logrotate.d" "$root/lib/systemd/system"
    cp -a "$stage/tree/." "$root/usr"
    find "$root/usr/share/man" -name '*.1' -exec gzip -9n {} +
    mv "$root/usr/share/doc/pando/LICENSE" "$root/usr/share/doc/pando/copyright"
    install -m 0644 "$here/deb/pando.conf" "$root/etc/pando.conf"
    install -m 0644 "$here/deb/logrotate" "$root/etc/logrotate.d/pando"
    install -m 0644 "$here/deb/pando.service" "$root/lib/systemd/system/pando.service"
    local script
    for script in postinst prerm postrm; do install -m 0755 "$here/deb/$script" "$root/DEBIAN/$script"; done
    printf '/etc/pando.conf\n/etc/logrotate.d/pando\n' >"$root/DEBIAN/conffiles"
    cat >"$root/DEBIAN/control" <<-END
	Package: pando
	Version: $version
	Architecture: $debian
	Maintainer: The PandoDB authors <packages@pandodb.invalid>
	Section: database
	Priority: optional
	Installed-Size: $(du -sk "$root" | cut -f1)
	Depends: libc6 (>= $glibc)$libraries, passwd
	Recommends: logrotate
	Description: document database for MongoDB's drivers, shells and tools
	 A server that MongoDB's own drivers use as it is, with replica sets and sharded clusters.
	END
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/pando_${version}_$debian.deb" >/dev/null
}

build_wheel() {
    local source=$stage/python
    cp -a "$here/python" "$source"
    install -D -m 0755 "$stage/tree/bin/pando" "$source/src/pandodb/bin/pando"
    PANDO_VERSION=$version PANDO_WHEEL_PLATFORM=$wheel_platform \
        python3 -m pip wheel --quiet --disable-pip-version-check --no-deps -w "$out" "$source"
}

build_npm() {
    command -v npm >/dev/null || die "please install npm"
    local source=$stage/npm platform=pandodb-$node_system-$node
    mkdir -p "$source/$platform/bin"
    cp -a "$here/npm/pandodb" "$source"
    cp LICENSE "$source/pandodb"
    cp LICENSE "$source/$platform"
    install -m 0755 "$stage/tree/bin/pando" "$source/$platform/bin/pando"
    node - "$source" "$version" "$platform" "$node_system" "$node" <<-'END'
	const fs = require('fs');
	const [source, version, platform, os, cpu] = process.argv.slice(2);
	const main = JSON.parse(fs.readFileSync(`${source}/pandodb/package.json`));
	main.version = version;
	for (const each of ['linux-x64', 'linux-arm64', 'darwin-x64', 'darwin-arm64']) main.optionalDependencies[`pandodb-${each}`] = version;
	fs.writeFileSync(`${source}/pandodb/package.json`, JSON.stringify(main, null, 2) + '\n');
	fs.writeFileSync(`${source}/${platform}/package.json`, JSON.stringify({
	  name: platform, version, description: `PandoDB's program for ${platform.slice(8)}`, license: 'Apache-2.0',
	  os: [os], cpu: [cpu], libc: os === 'linux' ? ['glibc'] : undefined, files: ['bin'],
	}, null, 2) + '\n');
	END
    (cd "$out" && npm pack --silent "$source/pandodb" "$source/$platform" >/dev/null)
}

# The context of `docker build`: the tarball's program and the files of packaging/container.
build_container() {
    local name=pando-$version-container-$machine
    mkdir -p "$stage/$name"
    cp "$here"/container/* "$stage/$name"
    cp "$stage/tree/bin/pando" LICENSE "$stage/$name"
    tar --create --sort=name --owner=0 --group=0 --mtime="@$SOURCE_DATE_EPOCH" -C "$stage" "$name" | gzip -n >"$out/$name.tar.gz"
}

# The formula names the sums of the tarballs that are there; a platform without one gets none.
build_homebrew() {
    [ -e "$out/pando-$version-$system-$machine.tar.gz" ] || build_tarball
    python3 "$here/homebrew/formula.py" "$version" "$out" >"$out/pandodb.rb"
}

# The chart as `helm package` packs it, without helm.
build_helm() {
    cp -a "$here/helm/pando" "$stage/pando"
    sed -i "s/^version: .*/version: $version/; s/^appVersion: .*/appVersion: \"$version\"/" "$stage/pando/Chart.yaml"
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --exclude=.helmignore -C "$stage" pando |
        gzip -n >"$out/pando-$version.tgz"
}

# ---- trying them, on the system that they are for

system_here() { if [ "$(uname -s)" = Darwin ]; then echo macos; else echo linux; fi; }
node_system_here() { uname -s | tr '[:upper:]' '[:lower:]'; }

in_tree() { ls "$out"/$1 2>/dev/null | tail -n 1; }

need_package() {
    local file
    file=$(in_tree "$1")
    [ -n "$file" ] || die "there is no $1 in $out: build it first"
    echo "$file"
}

python_with_driver() {
    python3 -m venv "$1"
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check pymongo pytest
}

# Tells how long it took from a package at hand to the first answer; what is needed besides is there before.
told_since() { echo "from the package to a first query: $((SECONDS - $1)) s"; }

try_tarball() {
    local file began
    file=$(need_package "pando-*-$(system_here)-*.tar.gz")
    python_with_driver "$work/venv-tarball"
    began=$SECONDS
    mkdir "$work/tarball"
    tar -xzf "$file" -C "$work/tarball" --strip-components=1
    printf '#!/bin/sh\nexec %s "%s" "$@"\n' "${PANDO_RUN:-}" "$work/tarball/bin/pando" >"$work/run-tarball"
    chmod 0755 "$work/run-tarball"
    # An emulated program is not measured.
    PYTHONPATH=$here/python/src PANDO_BIN=$work/run-tarball \
        "$work/venv-tarball/bin/python" "$here/try/first_query.py" ${PANDO_RUN:+1}
    told_since "$began"
}

try_deb() {
    bash "$here/try/deb.sh" "$(need_package 'pando_*.deb')" "$work/deb"
}

try_wheel() {
    python_with_driver "$work/venv"
    local began=$SECONDS
    "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index "$(need_package 'pandodb-*.whl')"
    "$work/venv/bin/pando" --version
    "$work/venv/bin/python" "$here/try/first_query.py"
    told_since "$began"
    "$work/venv/bin/python" -m pytest -q -p no:cacheprovider "$here/try/test_fixture.py"
}

try_npm() {
    mkdir "$work/npm"
    local main platform began
    platform=$(need_package "pandodb-$(node_system_here)-*.tgz")
    main=$(ls "$out"/pandodb-[0-9]*.tgz | tail -n 1)
    (cd "$work/npm" && echo '{"private": true}' >package.json &&
        npm install --silent --no-audit --no-fund mongodb)
    began=$SECONDS
    (cd "$work/npm" && npm install --silent --no-audit --no-fund "$platform" "$main" &&
        node_modules/.bin/pando --version && cp "$here/try/first_query.js" . && node first_query.js | tee said && grep -q '^first query answered' said)
    told_since "$began"
}

try_container() { bash "$here/try/container.sh" "$(need_package 'pando-*-container-*.tar.gz')" "$work/container"; }

try_homebrew() {
    need_package 'pandodb.rb' >/dev/null
    if command -v ruby >/dev/null; then ruby -c "$out/pandodb.rb"; else echo "SKIPPED: no ruby"; fi
}

# The chart's pods are run with the program of the tarball.
try_helm() {
    local file
    file=$(need_package 'pando-[0-9]*.tgz')
    [ -x "$work/venv-helm/bin/python" ] || python_with_driver "$work/venv-helm"
    mkdir -p "$work/helm-program"
    tar -xzf "$(need_package 'pando-*-linux-*.tar.gz')" -C "$work/helm-program" --strip-components=1
    PYTHON=$work/venv-helm/bin/python bash "$here/try/helm.sh" "$file" "$work/helm" "$work/helm-program/bin"
}

of_linux=(tarball deb wheel npm container homebrew helm)
of_macos=(tarball wheel npm homebrew)
if [ "$verb" = build ]; then
    prepare
    if [ "$system" = macos ]; then all=("${of_macos[@]}"); else all=("${of_linux[@]}"); fi
    [ ${#kinds[@]} -gt 0 ] || kinds=("${all[@]}")
    for kind in "${kinds[@]}"; do
        [[ " ${all[*]} " == *" $kind "* ]] || die "there is no $kind for $system"
    done
    for kind in "${kinds[@]}"; do
        say "$kind"
        "build_$kind"
    done
    (cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%f\n' | sort | xargs sha256sum >SHA256SUMS)
    echo "made for $wheel_platform" >&2
else
    if [ "$(system_here)" = macos ]; then all=("${of_macos[@]}"); else all=("${of_linux[@]}"); fi
    [ ${#kinds[@]} -gt 0 ] || kinds=("${all[@]}")
    work=$(mktemp -d)
    trap 'rm -rf --one-file-system "$work"' EXIT
    failed=0
    for kind in "${kinds[@]}"; do
        say "$kind"
        started=$SECONDS
        (set -e; "try_$kind") && echo "$kind: passed in $((SECONDS - started)) s" || { echo "$kind: FAILED"; failed=1; }
    done
    exit $failed
fi
