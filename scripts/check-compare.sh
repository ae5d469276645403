#!/bin/sh
# What `pando lab compare` can see on this machine: ten comparisons of one build with itself, which must not be called
# different, and ten with a slowdown of 5% put in on purpose, which must be called slower; nine of ten each, or it fails.
# First the null server, then the build itself. About a minute a comparison, less on a quiet machine.
#
#   scripts/check-compare.sh [PANDO] [RESULTS]     (default: target/release/pando lab-results)
set -eu
cd "$(dirname "$0")/.."
pando=${1:-target/release/pando}
results=${2:-lab-results}
day=$(date -u +%Y-%m-%d)
failed=0
for sides in null pando; do
    side=null
    [ $sides = null ] || side=$pando
    result=$results/compare-$sides-$day
    "$pando" lab compare "$side" "$side" --trials 10 --quiet --force --out "$result.json" || failed=1
    # The page can be made again: pando lab report RESULT.json
    rm -f "$result.html"
done
exit $failed
