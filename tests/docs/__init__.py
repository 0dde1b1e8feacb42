"""Every code block of the READMEs and of docs/ is run, or says in the text why not."""
