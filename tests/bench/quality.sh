#!/bin/sh
# The quality of the built-in model by policy, ratio and codec: `quality.sh KVWEAVE FOLDER [QUESTIONS]`.
set -eu
kvweave=$1 folder=$2 questions=${3:-2000}
mkdir -p "$folder"
ask() { # name, then options
	name=$1
	shift
	"$kvweave" eval --suite multihop --seed 59 "$@" --json --html "$folder/$name.html" > "$folder/$name.json"
}
ask main --n "$questions" --policies full,reuse,hybrid,ask --ratios 0.05,0.15 --codecs lossless,q4
ask rows --n $((questions / 4)) --difficulty 1,2,3 --tokens 500,1000 --passages 2,8,12,16 \
	--policies full,reuse,hybrid,ask --ratios 0.05 --codecs q4
ask forms --n $((questions / 4)) --forms all --policies full,reuse,ask --ratios 0.05 --codecs q4
ask many --n $((questions / 4)) --passages 12,16 --policies full,ask --ratios 0.1 --codecs q4
ask policies --n $((questions / 5)) --policies full,reuse,heads,deviation,hybrid,ask \
	--ratios 0.02,0.05,0.1,0.15,0.3 --codecs lossless
ask codecs --n $((questions / 5)) --policies full,reuse,ask --ratios 0.05 --codecs lossless,q8,q6,q5,q4,q3,q2
