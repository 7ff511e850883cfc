"""The picture of the explorer; and what it ships, a small trained vision Transformer.

Run it in the folder docs to train that again: python -m making.explorer
"""

import json
import shutil
import tempfile
import threading
import time
from pathlib import Path

import torch
from making.drawing import DOCS
from safetensors.torch import save_file

import bistoch
from bistoch.lab.data import load
from bistoch.lab.train import Recipe, Setup, open_task, train_run

DATA = "fashion-mnist-small"
MODEL = "vit(patch=(4, 4), depth=4, dim=48, heads=4, dropout=0.2)"
RECIPE = Recipe(epochs=16, lr=0.002)


def write_model(path: Path) -> None:
    """Train the model and write it in half precision, with the first test picture of each class.

    The same as: bistoch train --data fashion-mnist-small --epochs 16 --lr 0.002
    --model "vit(patch=(4, 4), depth=4, dim=48, heads=4, dropout=0.2)"
    """
    task = open_task(DATA)
    with tempfile.TemporaryDirectory() as folder:
        model, fitted = train_run(Setup(DATA, MODEL, recipe=RECIPE), task, Path(folder))
    data = load(DATA)
    first = [int((data.y_test == number).argmax()) for number in range(len(task.facts["classes"]))]
    tensors = {name: x.half() for name, x in model.state_dict().items()}
    tensors["pictures"] = torch.from_numpy(data.x_test[first].copy())
    about = {
        "model": MODEL, "classes": json.dumps(task.facts["classes"]), "data": DATA,
        "accuracy": f"{fitted.curve[-1]['accuracy']:.3f}",
    }  # fmt: skip
    save_file(tensors, path, about)
    print(path.name, path.stat().st_size, "bytes, accuracy", about["accuracy"])


def explorer_page() -> None:
    """The page as a browser shows it, with MiniLM; needs chromium and chromium-driver."""
    from PIL import Image
    from selenium import webdriver

    from bistoch.explorer.app import make_app
    from bistoch.explorer.serve import listen, load_subjects, make_server

    server = make_server(make_app(load_subjects()), listen(0))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1000"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    # a path, or selenium would look for a driver in the network
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    path = DOCS / "figures" / "explorer.png"
    try:
        size = {"width": 1280, "height": 1040, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get(f"http://127.0.0.1:{server.server_address[1]}/")
        while not any(x.text for x in driver.find_elements("id", "after-peak")):
            time.sleep(0.2)
        # the plots are drawn after the numbers
        time.sleep(3)
        driver.save_screenshot(str(path))
    finally:
        driver.quit()
        server.shutdown()
    with Image.open(path) as picture:
        # few colours: a small file
        picture.convert("RGB").quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    write_model(Path(bistoch.__file__).parent / "explorer" / "data" / "vit.safetensors")
