// Package command finds commands in the text of a comment. What comes in is
// Markdown written by anyone; what goes out is, in order, either the commands
// the text gives, or replies that say what is wrong with them, or the word to
// ignore it. It is pure and decides nothing about who may command.
//
// A command is the first text of a line of a top-level paragraph. Quotes,
// lists, tables, headings, code of any form, HTML and whatever stands between
// HTML tags never hold one. Such a text is read by the Markdown parser, not by
// patterns, and what it makes of it as a browser reads HTML, so that what a person
// sees in the rendered comment is what counts. Where readers of Markdown differ
// nothing is seen: a command can be given again, one that nobody saw cannot be
// taken back.
package command
