package handler

// MessageVariables are the names of the variables that a command gets of a message.
func MessageVariables() []string { return messageVariables }
