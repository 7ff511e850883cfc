"""The rows of images and point clouds in the table of data sets."""

from bistoch.lab.data import read_images
from bistoch.lab.data.entry import Entry, File, Form

DIGITS = tuple("0123456789")
CLOTHES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
CIFAR = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
FURNITURE = (
    "bathtub", "bed", "chair", "desk", "dresser",
    "monitor", "night_stand", "sofa", "table", "toilet",
)  # fmt: skip
ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
# the address LeCun's page forwards to no longer answers; this mirror keeps the same bytes
MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"

IMAGES = (
    Entry(
        "fashion-mnist-small",
        "images",
        "400 + 100 images of each class of fashion-mnist; comes with the package",
        "https://github.com/zalandoresearch/fashion-mnist",
        "MIT",
        {"train": 4000, "test": 1000},
        CLOTHES,
        forms=(
            Form(
                read_images.read_npz,
                (
                    File(
                        "fashion-mnist-small.npz",
                        2197864,
                        "dc509dc449e33cc88790c58fec2c3ba5443b15583a3a24983347f71d0f289f0e",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "fashion-mnist",
        "images",
        "articles of clothing, 28 x 28, grey",
        "https://github.com/zalandoresearch/fashion-mnist",
        "MIT",
        {"train": 60000, "test": 10000},
        CLOTHES,
        forms=(
            Form(
                read_images.read_idx,
                # the first checksum is Zalando's file, the second Debian's, packed without a name
                (
                    File(
                        "fashion-mnist/train-images-idx3-ubyte.gz",
                        26421880,
                        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                        f"{ZALANDO}train-images-idx3-ubyte.gz",
                        "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7",
                    ),
                    File(
                        "fashion-mnist/train-labels-idx1-ubyte.gz",
                        29515,
                        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                        f"{ZALANDO}train-labels-idx1-ubyte.gz",
                        "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056",
                    ),
                    File(
                        "fashion-mnist/t10k-images-idx3-ubyte.gz",
                        4422102,
                        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                        f"{ZALANDO}t10k-images-idx3-ubyte.gz",
                        "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa",
                    ),
                    File(
                        "fashion-mnist/t10k-labels-idx1-ubyte.gz",
                        5148,
                        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                        f"{ZALANDO}t10k-labels-idx1-ubyte.gz",
                        "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "mnist",
        "images",
        "handwritten digits, 28 x 28, grey",
        "http://yann.lecun.com/exdb/mnist/",
        "CC BY-SA 3.0",
        {"train": 60000, "test": 10000},
        DIGITS,
        forms=(
            Form(
                read_images.read_npz,
                (
                    File(
                        "mnist.npz",
                        11490519,
                        "06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
                    ),
                ),
            ),
            Form(
                read_images.read_idx,
                (
                    File(
                        "mnist/train-images-idx3-ubyte.gz",
                        9912422,
                        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                        f"{MNIST}train-images-idx3-ubyte.gz",
                    ),
                    File(
                        "mnist/train-labels-idx1-ubyte.gz",
                        28881,
                        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                        f"{MNIST}train-labels-idx1-ubyte.gz",
                    ),
                    File(
                        "mnist/t10k-images-idx3-ubyte.gz",
                        1648877,
                        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                        f"{MNIST}t10k-images-idx3-ubyte.gz",
                    ),
                    File(
                        "mnist/t10k-labels-idx1-ubyte.gz",
                        4542,
                        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                        f"{MNIST}t10k-labels-idx1-ubyte.gz",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "cifar10",
        "images",
        "animals and vehicles, 32 x 32, colour; the packed form is JPEG, not equal bit by bit",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "none stated",
        {"train": 50000, "test": 10000},
        CIFAR,
        forms=(
            Form(
                read_images.read_jpeg_npz,
                (
                    File(
                        "cifar10_jpeg.npz",
                        17987242,
                        "c9567da9d0ead483679a1156e2f9569da92f018e7984e0d9432b0e7161aebccb",
                    ),
                ),
            ),
            Form(
                read_images.read_cifar_binary,
                (
                    File(
                        "cifar-10-binary.tar.gz",
                        170052171,
                        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                    ),
                ),
            ),
        ),
    ),
    Entry(
        "modelnet10",
        "points",
        "furniture, 1024 points drawn from each surface, centred, in the unit sphere",
        "https://modelnet.cs.princeton.edu",
        "academic use",
        {"train": 3991, "test": 908},
        FURNITURE,
        forms=(
            Form(
                read_images.read_npz,
                (
                    File(
                        "modelnet10_1024.npz",
                        26266762,
                        "64c9bc81ed0a9b10d3d551ec182bd7828131d77283d19835193def66cb5eec9c",
                    ),
                ),
            ),
        ),
    ),
)
