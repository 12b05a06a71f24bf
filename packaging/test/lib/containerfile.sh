# Checks a Containerfile. Sourced.

# steps FILE prints its instructions, one per line: line number, name, tab, words. It joins
# continued lines and omits comments, also those between continued lines.
steps() {
	awk '
		/^[ \t]*#/ { next }
		/^[ \t]*$/ && step == "" { next }
		{
			if (step == "") first = NR
			step = step $0
			if (sub(/\\$/, "", step)) next
			name = step; sub(/[ \t].*/, "", name)
			words = step; sub(/^[^ \t]+[ \t]*/, "", words); gsub(/[ \t]+/, " ", words)
			print first " " name "\t" words
			step = ""
		}
		END { if (step != "") { print first " UNFINISHED\t" step } }
	' "$1"
}

# last_stages FILE prints the stages that no other stage is built from.
last_stages() {
	steps "$1" | awk -F'\t' '
		$1 ~ / FROM$/ { split($2, w, " "); made[w[3]]; used[w[1]] }
		$1 ~ / COPY$/ && match($2, /--from=[^ ]+/) { used[substr($2, RSTART + 7, RLENGTH - 7)] }
		END { for (s in made) if (s != "" && !(s in used)) print s }' | sort
}

# words_in JSON succeeds if the JSON is a list of words.
words_in() { jq -e 'type == "array" and length > 0 and all(type == "string")' >/dev/null 2>&1 <<<"$1"; }

# faults FILE DIR prints the errors in a Containerfile whose context is DIR, one per line.
faults() {
	local head words name from image stage= source line
	local -A user=() entry=() health=()
	while IFS=$'\t' read -r head words; do
		line=${head% *}
		name=${head#* }
		[ -n "$stage" ] || [ "$name" = FROM ] || { echo "line $line: $name before any FROM"; continue; }
		case $name in
		FROM)
			[[ $words =~ ^([^ ]+)\ AS\ ([a-z]+)$ ]] || { echo "line $line: FROM is not of the form IMAGE AS NAME"; continue; }
			image=${BASH_REMATCH[1]} stage=${BASH_REMATCH[2]}
			if [ -z "${user[$image]+made}" ]; then
				[[ $image =~ ^[a-z0-9.]+/[a-z0-9/._-]+:[a-z0-9._-]+$ ]] || echo "line $line: $image has no registry or no tag"
				[[ $image != *:latest ]] || echo "line $line: the tag latest changes; use a fixed tag"
			fi
			user[$stage]=${user[$image]-} entry[$stage]=${entry[$image]-} health[$stage]=${health[$image]-}
			;;
		USER) user[$stage]=$words ;;
		ENTRYPOINT)
			entry[$stage]=$words
			words_in "$words" || echo "line $line: ENTRYPOINT is not a list of words, so a shell would receive the signals"
			;;
		HEALTHCHECK)
			health[$stage]=${words#*CMD }
			words_in "${words#*CMD }" || echo "line $line: HEALTHCHECK is not a list of words"
			;;
		VOLUME) words_in "$words" || echo "line $line: VOLUME is not a list" ;;
		COPY)
			from=
			while [[ $words == --* ]]; do
				case $words in
				--from=*) from=${words%% *} from=${from#--from=} ;;
				*) echo "line $line: COPY ${words%% *} is not supported by this check" ;;
				esac
				words=${words#* }
			done
			[ -z "$from" ] || [ -n "${user[$from]+made}" ] || echo "line $line: there is no earlier stage $from"
			for source in ${words% *}; do
				[ -n "$from" ] || [ -e "$2/$source" ] || echo "line $line: there is no $source to copy"
			done
			;;
		ENV | ARG) [[ ! ${words^^} =~ (PASS|SECRET|TOKEN|PRIVATE|CREDENTIAL) ]] || echo "line $line: an image must not contain a secret" ;;
		WORKDIR) [[ $words == /* ]] || echo "line $line: WORKDIR $words is relative; use an absolute path" ;;
		RUN) [[ ! $words =~ (^|[^a-z])(sudo|curl|wget)\  ]] || echo "line $line: RUN must not use sudo, curl or wget" ;;
		STOPSIGNAL) [ "$words" = SIGTERM ] || echo "line $line: the signal $words does not drain the service" ;;
		ADD) echo "line $line: ADD can unpack and download; use COPY" ;;
		*) echo "line $line: the instruction $name is not supported by this check" ;;
		esac
	done < <(steps "$1")
	for source in $(last_stages "$1"); do
		[[ ${user[$source]} =~ ^[0-9]+:[0-9]+$ ]] || echo "stage $source: USER is ${user[$source]:-missing}, not UID:GID"
		[ -n "${entry[$source]}" ] || echo "stage $source has no ENTRYPOINT"
		[ -n "${health[$source]}" ] || echo "stage $source has no HEALTHCHECK"
	done
	[ -z "$stage" ] || [ "${user[$stage]%%:*}" != 0 ] || echo "stage $stage, the default of a build, runs as root"
}
