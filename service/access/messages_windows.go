package access

// joinGroupCommandFormat is the format of a command that messages suggest: it adds a user to a group.
const joinGroupCommandFormat = `in an elevated prompt: net localgroup %s "%s" /add, then log on again`

// cannotRunAsAdvice is the last part of the message that a job cannot run as the named user.
const cannotRunAsAdvice = "on Windows, a service can run jobs only as its own account; leave the user out"
