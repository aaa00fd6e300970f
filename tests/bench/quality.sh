#!/bin/sh
# The quality of the built-in model by policy, ratio and codec: `quality.sh KVWEAVE FOLDER [QUESTIONS]`.
set -eu
kvweave=$1 folder=$2 questions=${3:-2000}
mkdir -p "$folder"
ask() { # name, then options
	name=$1
	shift
	"$kvweave" eval --suite multihop --seed 41 "$@" --json --html "$folder/$name.html" > "$folder/$name.json"
}
ask hybrid --n "$questions" --policies full,reuse,hybrid --ratios 0.15 --codecs lossless,q4
ask policies --n $((questions / 5)) --policies full,prefix,reuse,heads,deviation,hybrid \
	--ratios 0,0.02,0.05,0.1,0.15,0.2,0.3,0.5,0.7,1 --codecs lossless
ask codecs --n $((questions / 5)) --policies full,reuse,hybrid --ratios 0.15 --codecs lossless,q8,q6,q5,q4,q3,q2
ask levels1 --n $((questions / 5)) --difficulty 1 --policies full,reuse,hybrid --ratios 0.15 --codecs q4
ask levels3 --n $((questions / 5)) --difficulty 3 --policies full,reuse,hybrid --ratios 0.15 --codecs q4
