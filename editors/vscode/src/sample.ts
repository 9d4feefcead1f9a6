/** What the walkthrough opens: a place where a suggestion is easy, and a body to fill. */

export const SAMPLE = `class Item:
    def __init__(self, name, price, stock):
        self.name = name
        self.price = price
        self.stock = stock

    def get_name(self):
        return self.name

    def get_price(self):
        ...

    def set_price(self, price):
        


item = Item("tea", 3, 10)
item.set_price(4)
print(item.get_name(), item.get_price())
`;

/** What stands before the place where typing begins, and before the body to fill. */
export const TYPE_BEHIND = "def set_price(self, price):\n        ";
export const FILL_BEHIND = "def get_price(self):\n        ";
