"""Writes the Homebrew formula of a version: formula.py VERSION DIRECTORY, where the tarballs of the platforms are.

A platform whose tarball is not there is left out."""

import hashlib
import sys
from pathlib import Path

PLATFORMS = [("on_linux", "on_intel", "linux-x86_64"), ("on_linux", "on_arm", "linux-aarch64"),
             ("on_macos", "on_intel", "macos-x86_64"), ("on_macos", "on_arm", "macos-aarch64")]


def formula(version, directory):
    blocks = ""
    for system, processor, name in PLATFORMS:
        file = Path(directory, f"pando-{version}-{name}.tar.gz")
        if not file.exists():
            continue
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        blocks += (f"  {system} do\n    {processor} do\n      url \"#{{homepage}}/releases/download/v{version}/{file.name}\"\n"
                   f"      sha256 \"{digest}\"\n    end\n  end\n\n")
    return f'''class Pandodb < Formula
  desc "Document database for MongoDB's drivers, shells and tools"
  homepage "https://example.invalid/pandodb"
  version "{version}"
  license "Apache-2.0"

{blocks}  def install
    bin.install "bin/pando"
    man1.install Dir["share/man/man1/*.1"]
    bash_completion.install "share/bash-completion/completions/pando"
    zsh_completion.install "share/zsh/vendor-completions/_pando"
    fish_completion.install "share/fish/vendor_completions.d/pando.fish"
  end

  service do
    run [opt_bin/"pando", "serve", "--dbpath", var/"pando", "--log-path", var/"log/pando.log"]
    keep_alive true
  end

  test do
    assert_match version.to_s, shell_output("#{{bin}}/pando --version")
  end
end
'''


print(formula(*sys.argv[1:]), end="")
