// Before anything is drawn: the theme that was chosen, if one was.
const theme = localStorage.getItem("theme");
if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
