// Package upgrades holds what brings the table of package sqlstore from one
// version of its schema to the next.
package upgrades

// Steps are those of each dialect, by its name: the first leads from version 1
// to 2, and so on. They are a variable, in a package of its own, so that tests on
// real servers can add versions that are still to come; nothing else writes it.
//
// A step is written as the schema is, in statements that end in ";\n". It
//
//   - runs in one transaction, which on MySQL does not hold it together: every
//     change of a table is committed at once. There it is one ALTER TABLE;
//   - fails where it has run, and changes nothing. An ALTER TABLE that adds
//     something does. On MySQL nothing else stops the second of two processes;
//   - leaves "oncemore schema N" where the version is kept: in the comment of the
//     table, and on SQLite in the definition of a column or an index that it adds;
//   - is done in five seconds however many rows there are, and is waited for by
//     everybody: it changes the catalog, and no row;
//   - adds only what may be left out, because programs of the version before go
//     on working on the table while it is rolled out.
//
// The files of the schema change with it: they make the table as all steps
// leave it. On PostgreSQL a file names the new column before it comments the
// table, or running it would make an older table look new.
var Steps = map[string][]string{
	"sqlite":   nil,
	"postgres": nil,
	"mysql":    nil,
}
