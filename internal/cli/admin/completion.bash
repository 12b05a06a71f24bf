__queuectl_words()
{
    if declare -F _get_comp_words_by_ref >/dev/null; then
        _get_comp_words_by_ref "$@"
        return
    fi
    local line=$COMP_LINE i word # bash splits words at = and :, which belong to them here
    words=() cword=0
    for i in "${!COMP_WORDS[@]}"; do
        word=${COMP_WORDS[i]}
        if [[ $i -gt 0 && $line != [[:space:]]* && ( $word == [=:]* || ${words[${#words[@]}-1]} == *[=:] ) ]]; then
            words[${#words[@]}-1]+=$word
        else
            words+=("$word")
        fi
        line=${line#"${line%%[![:space:]]*}"}
        line=${line#"$word"}
        if [[ $i -eq $COMP_CWORD ]]; then
            cword=$((${#words[@]}-1))
        fi
    done
    cur=${words[cword]} prev=${words[cword-1]}
}

__queuectl_filedir()
{
    if declare -F _filedir >/dev/null; then
        _filedir "$@"
        return
    fi
    compopt -o filenames 2>/dev/null
    if [[ ${1-} == -d ]]; then
        COMPREPLY+=($(compgen -d -- "$cur"))
    else
        COMPREPLY+=($(compgen -f -- "$cur"))
    fi
}
