// Copying is all that needs a script; every page works without.
document.querySelectorAll("button[data-copies]").forEach((button) => {
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copies).textContent);
    button.textContent = "Copied";
  });
});
