// Copying is all that needs a script; every page works without.
const seconds = Number(document.body.dataset.refresh);
if (seconds) setTimeout(() => location.reload(), 1000 * seconds);
document.querySelectorAll("button[data-copies]").forEach((button) => {
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copies).textContent);
    button.textContent = "Copied";
  });
});
